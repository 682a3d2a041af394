package admission

import (
	"math"
	"slices"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched/estimate"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
)

// Engine is a rank of an instance that may be picked for a model now.
type Engine struct {
	Address string
	Load    *policy.Load
}

const (
	// step is the work, in time, that should wait at an engine, so that it is not idle until the proxy sends
	// the next request.
	step = 100 * time.Millisecond
	// digestPeriod is the additional waiting work, in time, while other proxies have a backlog, too. For that
	// long, a proxy does not know where they send requests, so that some engines get none.
	digestPeriod = time.Second
	// fullKV is the share of the KV cache up to which requests are dispatched, and above which an
	// engine counts as full by its own report.
	fullKV = 0.9
	// unknownOutput is the expected number of output tokens until an answer was seen.
	unknownOutput = 128
)

// limits returns the parts of the engines' capacity that a class may fill. Batch leaves a little for the
// higher classes, so that they do not wait behind work that cannot be interrupted.
func limits(c Class) (queue, decode float64) {
	if c == Batch {
		return 0.5, 0.9
	}
	return 1, 1
}

// work is the expected work of a request, in tokens.
type work struct{ uncached, tokens, output float64 }

// cost returns the service that the request attains with this work.
func (w work) cost() float64 { return w.uncached*inputCost + w.output*outputCost }

// plan is the known state of the engines of a model. It is immutable, and at most about a second old.
type plan struct {
	at              time.Time
	prefill, decode []stage
	known           []stage        // decode, and other engines with known slots that have requests in flight
	rates           estimate.Rates // of the model
	held            float64        // KV cache in use for each token of Load.Held
	target          float64        // seconds of work that may wait at each prefill engine
	share           float64        // this proxy's part of the engines' capacity
	tpot            float64        // target of the time per token in seconds; 0: none
	decodeOnly      bool           // decode computes the prompts
	byLoad          float64        // see Others.ByLoad; 1 while no other proxy has a backlog
}

// stage is one engine in one role.
type stage struct {
	load     *policy.Load
	each     float64 // seconds to compute one token
	capacity float64 // tokens of the KV cache that may be in use; 0: unknown
	streams  float64 // number that it may have at once
	// maxStreams is the number of streams that the engine runs at once (--max-num-seqs), +Inf until learn has found
	// it. slots is the same, but grows while none wait, since an engine may restart with another limit.
	maxStreams, slots float64
	report            *policy.Engine
}

// crowded reports whether more requests wait for a slot than a short burst explains.
func crowded(e *policy.Engine) bool { return e.Queue() > e.All.Running/8 }

// learn finds the number of streams that an engine runs at once, from its last two reports. An engine that
// runs about the same number in both while many wait has no free slot; with a full KV cache, the numbers
// differ.
func (s *stage) learn(last *plan, i int) {
	s.maxStreams, s.slots, s.report = math.Inf(1), math.Inf(1), s.load.Engine.Load()
	if last == nil {
		return
	}
	if i >= len(last.known) || last.known[i].load != s.load {
		i = slices.IndexFunc(last.known, func(o stage) bool { return o.load == s.load })
	}
	if i < 0 {
		return
	}
	before := last.known[i].report
	if s.maxStreams, s.slots = last.known[i].maxStreams, last.known[i].slots; s.report == nil {
		s.report = before // the next one is compared with it
	}
	if before == nil {
		return
	}
	running := s.report.All.Running
	switch {
	case before == s.report:
	case !before.StartedAt.Equal(s.report.StartedAt): // restarted, maybe with another --max-num-seqs
		s.maxStreams, s.slots = math.Inf(1), math.Inf(1)
	case crowded(s.report) && crowded(before) && math.Abs(running-before.All.Running) <= max(1, running/16) && max(running, before.All.Running) >= minStreams:
		s.maxStreams = max(running, before.All.Running)
		s.slots = s.maxStreams
	case s.report.Queue() <= 0:
		if s.slots += max(1, s.slots/16); running > s.maxStreams {
			s.maxStreams = math.Inf(1)
		}
	}
}

// pending is the dispatched work that the load counts of engines do not include yet.
type pending struct{ uncached, tokens, streams int64 }

// fits reports whether both roles have capacity for one more request. It stops at the first engine with
// enough, so that it reads little of an idle fleet.
func (p *plan) fits(w work, c Class, out pending) bool {
	queue, decode := limits(c)
	return (p.prefillFits(queue, float64(out.uncached), w.uncached) || c < Batch && out.uncached == 0 && p.anyIdle()) && p.decodeFits(w, decode, out)
}

// anyIdle reports whether an engine that computes prompts has less than step waiting, from all proxies. A
// proxy may use it even if its share is used up: another proxy may have no request for it. Several proxies
// may do so at once, so this does not apply to class batch.
func (p *plan) anyIdle() bool {
	return slices.ContainsFunc(p.prefill, func(s stage) bool {
		return s.each*(float64(s.load.Waiting.Load())+s.load.Others.Waiting.Load()) < step.Seconds()
	})
}

// prefillFits reports whether less work waits in the engines that compute prompts than this proxy's share of
// the target. All engines are one pool, since a policy chooses among them. With other proxies, half of the
// tokens must fit, or half of the share: rounded up, many small shares would exceed the target.
func (p *plan) prefillFits(limit, pending, tokens float64) bool {
	if len(p.prefill) == 0 {
		return true
	}
	limit *= p.target
	total := limit * float64(len(p.prefill))
	capacity := p.share*total - total - pending*p.rates.Prefill.Each
	if p.share < 1 {
		capacity -= min(tokens*p.rates.Prefill.Each, p.share*total) / 2
	}
	for i := range p.prefill {
		capacity += max(0, limit-p.waiting(&p.prefill[i]))
		if capacity > 0 {
			return true
		}
	}
	return false
}

// waiting returns the seconds of work that wait at an engine and count for this proxy: its own, and that of
// proxies without a share of the capacity.
func (p *plan) waiting(s *stage) float64 {
	return s.each * (float64(s.load.Waiting.Load()) + p.byLoad*s.load.Others.Waiting.Load())
}

// decodeFits reports whether the KV caches have space for the request and its answer, and the engines for
// another stream.
func (p *plan) decodeFits(w work, limit float64, out pending) bool {
	if len(p.decode) == 0 {
		return true
	}
	kv, streams := -float64(out.tokens)*p.held, -float64(out.streams)
	need := w.tokens*p.held + w.output
	for i := range p.decode {
		s := &p.decode[i]
		n := float64(s.load.InFlight.Load()) + s.load.Others.InFlight.Load()
		if n == 0 && out.streams == 0 {
			return true // no other engine is better
		}
		if s.capacity == 0 {
			kv = math.Inf(1)
		} else {
			held := p.held * (float64(s.load.Held.Load()) + s.load.Others.Held.Load())
			kv += max(0, limit*s.capacity-held-n*w.output/2)
		}
		if streams += max(0, limit*s.streams-n); kv >= need && streams >= 1 {
			return true
		}
	}
	return false
}

// saturation returns the load of each role, relative to the load that the queue admits.
func (p *plan) saturation() map[instance.Role]float64 {
	out := map[instance.Role]float64{}
	for i := range p.prefill {
		s := &p.prefill[i]
		out[instance.Prefill] += s.each * (float64(s.load.Waiting.Load()) + s.load.Others.Waiting.Load()) / p.target / float64(len(p.prefill))
	}
	for i := range p.decode {
		s := &p.decode[i]
		n := float64(s.load.InFlight.Load()) + s.load.Others.InFlight.Load()
		is := n / s.streams
		if s.capacity > 0 {
			kv := estimate.KV{Held: p.held * (float64(s.load.Held.Load()) + s.load.Others.Held.Load()), Streams: n / 2, Capacity: s.capacity}
			is = max(is, p.rates.KVUse(kv))
		}
		out[instance.Decode] += is / float64(len(p.decode))
	}
	return out
}

// full reports whether every engine of a role is measured to be full. Only then may a prediction refuse a
// request. An engine is full if it reports waiting requests or a nearly full KV cache. The proxies keep the
// engines' queues too short to show in these reports. So an engine that computes prompts is also full while
// it reports a running request. Decode is also full while it runs as many streams as it can, or while the
// measured time per token is near the target.
func (p *plan) full() bool {
	all := func(list []stage, busy func(*stage, *policy.Engine) bool) bool {
		for i := range list {
			e := list[i].load.Engine.Load()
			if e == nil || !e.Queued() && e.All.Usage <= fullKV && !busy(&list[i], e) {
				return false
			}
		}
		return len(list) > 0
	}
	return all(p.prefill, func(_ *stage, e *policy.Engine) bool { return !p.decodeOnly && e.All.Running > 0 }) ||
		all(p.decode, func(s *stage, e *policy.Engine) bool {
			return e.All.Running >= s.maxStreams-1 || p.tpot > 0 && p.rates.Pace >= 0.8*p.tpot
		})
}

// newPlan reads the known state of the engines of a queue.
func (o *Options) newPlan(m *queue, now time.Time, last *plan) *plan {
	prefill, decode := o.Engines(m.model, m.labels)
	p := &plan{at: now, rates: o.Rates(m.model, ""), held: 1, target: step.Seconds(), share: 1, byLoad: 1, tpot: o.TPOT.Seconds()}
	if last != nil {
		p.held = last.held
	}
	if p.rates.Output == 0 {
		p.rates.Output = unknownOutput
	}
	if p.decodeOnly = len(prefill) == 0; p.decodeOnly {
		prefill = decode
	}
	for _, e := range prefill {
		p.prefill = append(p.prefill, stage{load: e.Load, each: o.Rates(m.model, e.Address).Prefill.Each})
	}
	var reported, held float64
	for i, e := range decode {
		s := stage{load: e.Load, capacity: e.Load.Capacity.Load() * fullKV, streams: math.Inf(1)}
		if r := o.Rates(m.model, e.Address); o.TPOT > 0 && r.Token.Each > 0 {
			// Even an engine that is slow with few streams is kept busy.
			s.streams = max(minStreams, (o.TPOT.Seconds()-r.Token.Fixed)/r.Token.Each)
		}
		s.learn(last, i)
		s.streams = min(s.streams, s.slots)
		p.decode = append(p.decode, s)
		if report := e.Load.Engine.Load(); report != nil && s.capacity > 0 {
			reported += report.All.Usage * e.Load.Capacity.Load()
			held += float64(e.Load.Held.Load()) + e.Load.Others.Held.Load()
		}
	}
	p.known = p.decode
	for i := 0; last != nil && i < len(last.known); i++ {
		s := &last.known[i]
		if math.IsInf(s.slots, 1) || s.load.InFlight.Load() == 0 || i < len(decode) && decode[i].Load == s.load {
			continue
		}
		if !slices.ContainsFunc(decode, func(e Engine) bool { return e.Load == s.load }) {
			p.known = append(p.known, *s)
		}
	}
	if held > 0 && reported > 0 {
		// Streams share prefixes, and add their output: a moving average, since both change.
		p.held += (min(max(reported/held, 0.05), 2) - p.held) / 8
	}
	return p
}

// minStreams is the number of streams that a decode instance may have, whatever its time per token.
const minStreams = 8
