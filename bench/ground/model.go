package ground

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/prefix"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
	"github.com/pdmesh/pdmesh/sim/fakevllm/kvcache"
)

// Oracle is a policy of the model alone: it knows what is in every cache and how long
// every queue is, and chooses where this prompt is done first. Others know less; but
// they may look further.
const Oracle = "oracle"

// Model is a fleet without a network and without a clock: each prefill engine is a queue
// with a cache. Decode is not looked at, so that goodput is that of the first token.
type Model struct {
	Engines     int
	Engine      Engine
	Caches      Caches
	Limits      Limits
	Seed        uint64
	CacheWeight float64 // see policy.Options; 0 is the default
	// Proxies take the requests in turn. They tell each other every second what waits for
	// them, unless Silent.
	Proxies int
	Silent  bool
}

// Run sends a workload through a policy.
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
		placements[i].SetOthers(o.Proxies > 1 && !o.Silent)
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
		if !o.Silent {
			for ; m.told+tellEvery <= r.At; m.told += tellEvery {
				m.until(m.told + tellEvery)
				m.tell()
			}
		}
		m.until(r.At)
		ids, chat := r.Prompt(), r.chat()
		m.now, m.ids = r.At, ids
		one := &m.proxies[i%len(m.proxies)]
		at, believed := choose(one.chain, policy.All(one.list), policy.Request{
			Role: instance.Prefill, Model: Served, Session: r.Session, Prompt: chat, Tokens: len(chat) / 4, Length: len(chat),
		})
		samples = append(samples, sample{ttft: m.compute(r.At, at, ids, believed, one.list[at].Load), ok: true})
	}
	res := Result{Target: "model " + name}
	res.fill(samples, o.Limits)
	queries, hits := int64(0), int64(0)
	for _, cache := range m.caches {
		s := cache.Stats()
		queries, hits = queries+s.Queries, hits+s.Hits
	}
	res.weigh(queries, hits, m.computed, SharedHits(w, o.Caches, o.Engines))
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

// tellEvery is how often proxies tell each other of their load.
const tellEvery = time.Second

// proxy is what one of several proxies knows.
type proxy struct {
	chain  []policy.Policy
	list   []policy.Candidate
	placed *prefix.Placements
}

// digestRoom is how many bytes of prompts one proxy tells at a time.
const digestRoom = 8 << 10

// tell lets each proxy know what waits for the others, and what they have placed.
func (m *model) tell() {
	for i := range m.proxies {
		placed := m.proxies[i].placed.Take(digestRoom)
		for k := range m.proxies {
			if k == i {
				continue
			}
			if err := m.proxies[k].placed.Read(placed); err != nil {
				panic(err) // they are of one program
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
	told     time.Duration // when they told each other last
	engine   Engine
	caches   []*kvcache.Cache
	free     []time.Duration // when the queue of an engine is empty
	computed []int64
	ends     ends

	now time.Duration
	ids []int // of the prompt that is to go somewhere
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

// compute queues a prompt at an engine, and reports when its first token is there. What
// is found in the cache is what was there when it was queued and what those before
// it in the queue will have left.
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
	heap.Push(&m.ends, ending{end, func() {
		load.End(len(ids))
		load.Waiting.Add(-waiting)
	}})
	return end - now + seconds(float64(len(ids)*Shrink)/m.engine.LoadRate)
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// until lets everything happen that happens before a time.
func (m *model) until(now time.Duration) {
	for len(m.ends) > 0 && m.ends[0].at <= now {
		heap.Pop(&m.ends).(ending).do()
	}
}

// ending is the end of a prefill.
type ending struct {
	at time.Duration
	do func()
}

// ends is a heap of them.
type ends []ending

func (e ends) Len() int           { return len(e) }
func (e ends) Less(i, j int) bool { return e[i].at < e[j].at }
func (e ends) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *ends) Push(x any)        { *e = append(*e, x.(ending)) }
func (e *ends) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}
