package ground

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/pdmesh/pdmesh/internal/fakevllm/kvcache"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
)

// Oracle is a policy of the model alone: it knows what is in every cache and how long
// every queue is, and chooses where this prompt is done first. Others know less; but
// they may look further.
const Oracle = "oracle"

// Model runs a workload through a policy without a network and without a clock: each
// prefill engine is a queue with a cache. Decode is not looked at, so that goodput
// is that of the first token.
func Model(w *Workload, name string, engines int, e Engine, c Caches, limits Limits, seed uint64) (Result, error) {
	kind, err := policy.Find(name)
	if err != nil && name != Oracle {
		return Result{}, fmt.Errorf("policy %q: %w", name, err)
	}
	m := &model{engine: e, caches: make([]*kvcache.Cache, engines), free: make([]time.Duration, engines), computed: make([]int64, engines)}
	list := make([]policy.Candidate, engines)
	for i := range list {
		in := &instance.Instance{Key: instance.Key{Role: instance.Prefill, Address: fmt.Sprintf("10.0.0.%d:8000", i+1)}}
		list[i] = policy.NewCandidate(in, 0, new(policy.Load))
		m.caches[i] = kvcache.New(kvcache.Config{BlockSize: c.BlockSize, Blocks: c.Blocks, Seed: uint64(i)})
	}
	rng := rand.New(rand.NewPCG(seed, 1))
	chain := []policy.Policy{oracle{m}}
	if name != Oracle {
		chain = chain[:0]
		for _, k := range policy.Chain(kind, false) {
			chain = append(chain, k.New(policy.Options{Rand: rng.Float64, Now: func() time.Time { return time.Unix(0, 0).Add(m.now) }}))
		}
	}
	samples := make([]sample, 0, len(w.Requests))
	for i := range w.Requests {
		r := &w.Requests[i]
		m.until(r.At)
		ids, chat := r.Prompt(), r.chat()
		m.now, m.ids = r.At, ids
		at, believed := choose(chain, policy.All(list), policy.Request{
			Role: instance.Prefill, Model: Served, Session: r.Session, Prompt: chat, Tokens: len(chat) / 4, Length: len(chat),
		})
		samples = append(samples, sample{ttft: m.compute(r.At, at, ids, believed, list[at].Load), ok: true})
	}
	res := Result{Target: "model " + name}
	res.fill(samples, limits)
	queries, hits := int64(0), int64(0)
	for _, cache := range m.caches {
		s := cache.Stats()
		queries, hits = queries+s.Queries, hits+s.Hits
	}
	res.weigh(queries, hits, m.computed, SharedHits(w, c, engines))
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

// model is the prefill side of a fleet.
type model struct {
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

// compute queues a prompt at an engine, and tells when its first token is there. What
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
