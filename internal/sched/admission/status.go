package admission

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// maxListedKeys bounds the keys of a queue in its status: those with the most waiting requests.
const maxListedKeys = 64

// formerTarget is the time after which an unused queue of a model route's target is not listed.
const formerTarget = 10 * time.Minute

// Status returns the state of each queue, ordered by model, except empty queues of models without engines and
// of former targets.
func (q *Queues) Status() []instance.ListedQueue {
	if q == nil {
		return nil
	}
	out := []instance.ListedQueue{}
	for _, m := range *q.models.Load() {
		if s, listed := m.status(); listed {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(a, b instance.ListedQueue) int { return cmp.Compare(a.Model, b.Model) })
	return out
}

// status returns the state of the queue. listed is false if it is empty, and has no engines or may belong to
// a target that no model route has any more.
func (m *queue) status() (s instance.ListedQueue, listed bool) {
	now := m.opts.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.replan(now)
	p := m.plan.Load()
	if m.order.len() == 0 && (len(p.prefill) == 0 || len(m.labels) > 0 && now.Sub(m.last) > formerTarget) {
		return s, false
	}
	_, bytes := m.order.upTo(classes - 1)
	s = instance.ListedQueue{
		Model: m.name, Mode: string(m.opts.Mode), Waiting: map[string]int{}, Keys: map[string]int{}, Bytes: bytes,
		Saturation: p.saturation(), Samples: p.rates.Samples(), Refused: m.refused.Load(), Share: p.share, Full: p.full(),
	}
	if r := m.order.next(now); r != nil {
		// A role is full once it has less left than the request needs. Class batch waits before that.
		out := m.out.load()
		if !p.prefillFits(1, float64(out.uncached), r.work.uncached) && !p.anyIdle() {
			s.Saturation[instance.Prefill] = max(1, s.Saturation[instance.Prefill])
		}
		if !p.decodeFits(r.work, 1, out) {
			s.Saturation[instance.Decode] = max(1, s.Saturation[instance.Decode])
		}
	}
	wait := p.queued()
	if m.opts.Mode == On {
		wait = 0
		if m.order.len() > 0 {
			wait = m.predict(&account{class: Default}, m.order.cost[Default], p) // after all of its class
		}
	}
	s.PredictedWait = wait.Round(time.Millisecond).Seconds()
	for _, c := range Classes() {
		s.Waiting[c.String()] = m.order.length[c]
		for _, a := range m.order.accounts[c] {
			if len(a.waiting) == 0 {
				continue
			}
			s.Keys[a.name] += len(a.waiting)
			for _, r := range a.waiting {
				s.Oldest = max(s.Oldest, now.Sub(r.arrived).Round(time.Millisecond).Seconds())
			}
		}
	}
	names := slices.SortedFunc(maps.Keys(s.Keys), func(a, b string) int { return cmp.Or(s.Keys[b]-s.Keys[a], cmp.Compare(a, b)) })
	for _, name := range names[min(len(names), maxListedKeys):] {
		delete(s.Keys, name)
	}
	return s, true
}

// Predicted records the time to a first token, and its prediction when the legs began.
func (q *Queues) Predicted(took, predicted float64) {
	if q != nil && predicted > 0 {
		q.opts.Observer.Predicted(took / predicted)
	}
}
