package ground

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/kvcache/prefix"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
	"github.com/pdmesh/pdmesh/sim/fakevllm/kvcache"
)

// Oracle is a policy that only the model has. It knows all caches and queues, and chooses the
// engine that computes the prompt first. A policy that plans for later prompts may be better.
const Oracle = "oracle"

// Model is a fleet without network and clock. A prefill engine is a queue with a cache. There
// is no decode, so goodput is that of the first token.
type Model struct {
	Engines     int
	Engine      Engine
	Caches      Caches
	Seed        uint64
	CacheWeight float64 // see policy.Options; 0 is the default
	// Proxies get the requests in turn. They exchange load digests every second.
	Proxies int
}

// Run runs a workload with a policy.
func (o *Model) Run(w *Workload, name string) (Result, error) {
	kind, err := policy.Find(name)
	if err != nil && name != Oracle {
		return Result{}, fmt.Errorf("policy %q: %w", name, err)
	}
	m := &model{engine: o.Engine, caches: make([]*kvcache.Cache, o.Engines), free: make([]time.Duration, o.Engines), computed: make([]int64, o.Engines)}
	for i := range m.caches {
		m.caches[i] = kvcache.New(kvcache.Config{BlockSize: o.Caches.BlockSize, Blocks: o.Caches.Blocks, Seed: uint64(i)})
	}
	rng := rand.New(rand.NewPCG(o.Seed, 1))
	placements := make([]*prefix.Placements, max(1, o.Proxies))
	for i := range placements {
		placements[i] = new(prefix.Placements)
		placements[i].SetOthers(o.Proxies > 1)
		list := make([]policy.Candidate, o.Engines)
		for i := range list {
			in := &instance.Instance{Key: instance.Key{Role: instance.Prefill, Address: fmt.Sprintf("10.0.0.%d:8000", i+1)}}
			list[i] = policy.NewCandidate(in, 0, new(policy.Load))
		}
		chain := []policy.Policy{oracle{m}}
		if name != Oracle {
			chain = chain[:0]
			for _, k := range policy.Chain(kind, false) {
				chain = append(chain, k.New(policy.Options{
					Rand: rng.Float64, CacheWeight: o.CacheWeight, Now: func() time.Time { return time.Unix(0, 0).Add(m.now) },
					Placements: placements[i],
				}))
			}
		}
		m.proxies = append(m.proxies, proxy{chain, list, placements[i]})
	}
	samples := make([]sample, 0, len(w.Requests))
	for i := range w.Requests {
		r := &w.Requests[i]
		for ; m.shared+digestInterval <= r.At; m.shared += digestInterval {
			m.ends.until(m.shared + digestInterval)
			m.exchange()
		}
		m.ends.until(r.At)
		ids, chat := r.Prompt(), r.chat()
		m.now, m.ids = r.At, ids
		one := &m.proxies[i%len(m.proxies)]
		at, believed := choose(one.chain, policy.All(one.list), policy.Request{
			Role: instance.Prefill, Model: Served, Session: r.Session, Prompt: chat, Tokens: len(chat) / 4,
		})
		samples = append(samples, sample{ttft: m.compute(r.At, at, ids, believed, one.list[at].Load), ok: true})
	}
	res := Result{Target: "model " + name}
	res.fill(samples, DefaultLimits(), w.Length)
	queries, hits := int64(0), int64(0)
	for _, cache := range m.caches {
		s := cache.Stats()
		queries, hits = queries+s.Queries, hits+s.Hits
	}
	res.setRatios(queries, hits, m.computed, SharedHits(w, o.Caches, o.Engines))
	return res, nil
}

func choose(chain []policy.Policy, c policy.Candidates, r policy.Request) (at, cached int) {
	for _, p := range chain {
		if at, cached = p.Choose(c, r); at >= 0 {
			break
		}
	}
	return at, cached
}

// digestInterval is the interval of load digests.
const digestInterval = time.Second

// proxy is the state of a proxy.
type proxy struct {
	chain  []policy.Policy
	list   []policy.Candidate
	placed *prefix.Placements
}

// digestBytes limits the prompts in a load digest.
const digestBytes = 8 << 10

// exchange sends each proxy the load and the placements of the others.
func (m *model) exchange() {
	for i := range m.proxies {
		placed := m.proxies[i].placed.Take(digestBytes)
		for k := range m.proxies {
			if k == i {
				continue
			}
			if err := m.proxies[k].placed.Read(placed); err != nil {
				panic(err) // all proxies have the same format
			}
		}
	}
	for i := range m.computed {
		all := int64(0)
		for _, p := range m.proxies {
			all += p.list[i].Load.Waiting.Load()
		}
		for _, p := range m.proxies {
			p.list[i].Load.Others.Waiting.Store(float64(all - p.list[i].Load.Waiting.Load()))
			p.list[i].Load.Weigh()
		}
	}
}

// model is the prefill side of a fleet.
type model struct {
	proxies  []proxy
	shared   time.Duration // time of the last exchange
	engine   Engine
	caches   []*kvcache.Cache
	free     []time.Duration // time at which the queue of an engine is empty
	computed []int64
	ends     events[time.Duration]

	now time.Duration
	ids []int // tokens of the current prompt
}

type oracle struct{ *model }

// Choose implements policy.Policy.
func (o oracle) Choose(c policy.Candidates, _ policy.Request) (at, cached int) {
	var first time.Duration
	for i := range c.Len() {
		found := o.caches[c.Index(i)].Peek(o.ids, "")
		end := max(o.now, o.free[c.Index(i)]) + seconds(float64((len(o.ids)-found)*Shrink)/o.engine.PrefillRate)
		if i == 0 || end < first {
			at, cached, first = i, found, end
		}
	}
	return at, cached
}

// compute adds a prompt to the queue of an engine, and returns its time to the first token. The
// cache has what it had before, and the prompts that are earlier in the queue.
func (m *model) compute(now time.Duration, at int, ids []int, believed int, load *policy.Load) time.Duration {
	cached := 0
	if h := m.caches[at].TryTake(ids, ""); h != nil {
		cached = h.Cached()
		h.Computed()
		h.Free()
	}
	rest := len(ids) - cached
	m.computed[at] += int64(rest)
	end := max(now, m.free[at]) + seconds(float64(rest*Shrink)/m.engine.PrefillRate)
	m.free[at] = end
	waiting := int64(max(0, len(ids)-believed))
	load.Begin(len(ids))
	load.Waiting.Add(waiting)
	m.ends.add(end, func() {
		load.End(len(ids))
		load.Waiting.Add(-waiting)
	})
	return end - now + seconds(float64(len(ids)*Shrink)/m.engine.LoadRate)
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// events are what happens later, in the order of time.
type events[T cmp.Ordered] []event[T]

type event[T cmp.Ordered] struct {
	at T
	do func()
}

func (q *events[T]) add(at T, do func()) {
	i, _ := slices.BinarySearchFunc(*q, at, func(e event[T], at T) int { return cmp.Compare(e.at, at) })
	*q = slices.Insert(*q, i, event[T]{at, do})
}

// until lets happen what is due by then.
func (q *events[T]) until(then T) {
	for len(*q) > 0 && (*q)[0].at <= then {
		next := (*q)[0]
		*q = (*q)[1:]
		next.do()
	}
}
