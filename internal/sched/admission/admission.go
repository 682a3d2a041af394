// Package admission keeps requests in the proxy while the engines have enough work, so that the proxy decides
// their order. It refuses requests that would be served too late.
//
//	Admit ─▶ fits? ─▶ begin ─▶ Picked (prefill, decode) ─▶ Prefilled ─▶ Done
//	           │ no                                             │         │
//	           └▶ refuse, or wait: class ─▶ key ─▶ deadline ◀── wake ─────┘
//
// There is one queue for each model, and for each target of a model route with labels, so that a full queue
// does not delay another. Predictions may delay a request; they refuse it only if the engines report that
// they are full. All proxies apply the same rules to their published backlogs, so that they work as one
// queue.
package admission

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched/estimate"
)

// Mode is the effect of the queues.
type Mode string

// The modes.
const (
	Off     Mode = "off"
	Observe Mode = "observe" // only counts the decisions of On
	On      Mode = "on"
)

// Reasons for refusals.
const (
	ReasonWait     = "predicted_wait" // the deadline would pass while it waits
	ReasonDeadline = "deadline"       // the deadline has passed
	ReasonFull     = "queue_full"     // too many requests, or too many bytes, wait
	ReasonStopping = "stopping"       // the proxy stops
)

// Reasons returns all reasons for refusals.
func Reasons() []string { return []string{ReasonWait, ReasonDeadline, ReasonFull, ReasonStopping} }

// Results that mode Observe counts.
const (
	ResultPass   = "pass"
	ResultWait   = "wait"
	ResultRefuse = "refuse"
)

// Results returns all results that mode Observe counts.
func Results() []string { return []string{ResultPass, ResultWait, ResultRefuse} }

// RefusedError is the error of a request that is not served.
type RefusedError struct {
	Reason string
	// Wait is the time, with jitter, after which the client may send it again.
	Wait time.Duration

	queue *queue
}

// Error implements error.
func (r *RefusedError) Error() string { return "not admitted: " + r.Reason }

// Count counts the refusal of a request of a class. It is not called if the request is tried on another
// target.
func (r *RefusedError) Count(c Class) {
	r.queue.opts.Observer.NotAdmitted(c, r.Reason)
	r.queue.refused.Add(1)
}

// ErrGone is returned for a client that left while its request waited.
var ErrGone = errors.New("the client has left")

// Bound returns the longest time that a request of a class waits.
func (c Class) Bound() time.Duration {
	return [...]time.Duration{30 * time.Second, 2 * time.Minute, 30 * time.Minute}[c]
}

// Observer receives events of requests. It must not block.
type Observer interface {
	// Waited is called for every dispatched request that had to wait.
	Waited(c Class, d time.Duration)
	// NotAdmitted is called by RefusedError.Count.
	NotAdmitted(c Class, reason string)
	// Observed is called in mode Observe with the result that On would have had.
	Observed(c Class, result string)
	// Predicted is called with the ratio of the measured to the predicted time to first token.
	Predicted(ratio float64)
}

// Options configure Queues. All functions must be set.
type Options struct {
	Mode Mode
	// Engines returns the engines that may be picked for a model and labels; none for an unknown model.
	Engines func(model string, labels instance.Selector) (prefill, decode []Engine)
	// Rates returns the learned times of a model, or of an instance if address is not empty.
	Rates func(model, address string) estimate.Rates
	// Tokens estimates the number of tokens in bytes of a prompt.
	Tokens func(model string, bytes int) int
	// TPOT is the target of the time between two tokens; 0: none.
	TPOT time.Duration
	// MaxWaiting and MaxBytes bound the requests that wait for one model, and their bodies.
	MaxWaiting int
	MaxBytes   int64
	Observer   Observer
	Now        func() time.Time // default time.Now
}

// Queues has the queues, by name. New creates it; it is safe for concurrent use. A nil Queues
// admits all.
type Queues struct {
	opts   Options
	mu     sync.Mutex // guards changes of models
	models atomic.Pointer[map[string]*queue]
	active chan struct{}          // signals that Run has to watch a queue again
	closed chan struct{}          // closed by Close
	others atomic.Pointer[Others] // nil: there are none
}

// New returns the queues, nil for mode Off. Run must be called.
func New(o Options) *Queues {
	if o.Mode == Off {
		return nil
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	q := &Queues{opts: o, active: make(chan struct{}, 1), closed: make(chan struct{})}
	q.models.Store(&map[string]*queue{})
	return q
}

// Mode returns the mode of the queues.
func (q *Queues) Mode() Mode {
	if q == nil {
		return Off
	}
	return q.opts.Mode
}

// Cache estimates the number of prompt tokens in the cache of the engine that would serve the request. known
// is false if the contents of the engines' caches are unknown.
type Cache interface {
	Cached() (tokens int, known bool)
}

// Request is one request and its place in a queue. Its exported fields are set before Admit. Until it is
// admitted, it has no place. It belongs to one goroutine, except while Admit waits.
type Request struct {
	Model  string
	Labels instance.Selector // of the instances; nil: any
	Queue  string            // instance.QueueName of Model and Labels; "" means Model
	Class  Class
	Key    string // name of the client's API key, "" for all clients without one
	// Prompt is the number of bytes that the model reads, Bytes the size of the body.
	Prompt int
	Bytes  int64
	// Timeout is the time to first token after which the client no longer needs the answer; 0: none.
	Timeout time.Duration
	// Cache is queried if the request does not fit at once; nil: the average of the model is used.
	Cache Cache

	queue    *queue // nil: it has no place
	account  *account
	work     work
	cost     float64 // work.cost()
	pending  pending // its part of queue.out
	arrived  time.Time
	deadline time.Time
	seq      uint64
	again    int        // calls of Again
	ready    chan error // receives the result of the wait
}

// Admit blocks until the request may be sent to engines; otherwise it returns a *RefusedError or ErrGone.
// Done or Release must be called when the request has ended. Then it may be admitted for another model: its
// time counts from the first call.
func (q *Queues) Admit(ctx context.Context, r *Request) error {
	if q == nil {
		return nil
	}
	m := q.find(r)
	if m == nil {
		return nil
	}
	if !m.used.Load() {
		m.freshen()
		q.wakeRun()
	}
	p, now := m.plan.Load(), q.opts.Now()
	if r.ready = nil; r.arrived.IsZero() {
		r.arrived = now
	}
	m.estimate(r, p)
	if m.waiting.Load() == 0 && p.fits(r.work, r.Class, m.out.load()) {
		m.begin(r)
		if q.opts.Mode == Observe {
			q.opts.Observer.Observed(r.Class, ResultPass)
		}
		return nil
	}
	r.refine()
	if q.opts.Mode == Observe {
		q.opts.Observer.Observed(r.Class, m.observe(r, now))
		m.begin(r)
		return nil
	}
	err := m.enqueue(r, now)
	if err != nil || r.ready == nil {
		return err
	}
	q.wakeRun()
	select {
	case err = <-r.ready:
	case <-ctx.Done():
		if m.leave(r) {
			return ErrGone
		}
		err = <-r.ready
	}
	if err == nil {
		q.opts.Observer.Waited(r.Class, q.opts.Now().Sub(r.arrived))
	}
	return err
}

// Again waits before an admitted request that engines have refused as busy is sent again: clients that bypass
// the proxies may have filled them. The wait is a second on average and doubles each time, up to 8 s. Again
// returns false if the request has too little time left or if MaxWaiting others wait here. It returns an
// error of Admit if the wait is cut short.
func (q *Queues) Again(ctx context.Context, r *Request) (again bool, err error) {
	if q.Mode() != On || r.queue == nil {
		return false, nil
	}
	most := refresh << min(r.again, 3)
	wait := most/2 + rand.N(most) // not all at once
	r.again++
	defer r.queue.again.Add(-1)
	if r.queue.again.Add(1) > int64(q.opts.MaxWaiting) || q.opts.Now().Add(wait).After(r.arrived.Add(r.limit())) {
		return false, nil
	}
	was := r.pending
	r.Picked(instance.Decode) // meanwhile, other requests may use its capacity
	select {
	case <-time.After(wait):
		r.pending = was
		r.queue.out.add(was)
		return true, nil
	case <-ctx.Done():
		return false, ErrGone
	case <-q.closed:
		return false, &RefusedError{Reason: ReasonStopping, queue: r.queue}
	}
}

// pruneModels is the number of queues from which those without engines are dropped.
const pruneModels = 1024

// find returns the queue of a request, nil if no engine serves it.
func (q *Queues) find(r *Request) *queue {
	name := cmp.Or(r.Queue, r.Model)
	if m := (*q.models.Load())[name]; m != nil {
		return m
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	now := *q.models.Load()
	if m := now[name]; m != nil {
		return m
	}
	if prefill, decode := q.opts.Engines(r.Model, r.Labels); len(prefill)+len(decode) == 0 {
		return nil
	}
	m := &queue{name: name, model: r.Model, labels: r.Labels, opts: &q.opts, closed: q.closed, others: &q.others}
	m.accounts.Store(&map[accountKey]*account{})
	m.plan.Store(q.opts.newPlan(m, q.opts.Now(), nil))
	next := maps.Clone(now)
	if len(next) >= pruneModels {
		maps.DeleteFunc(next, func(_ string, m *queue) bool {
			prefill, decode := q.opts.Engines(m.model, m.labels)
			return len(prefill)+len(decode) == 0 && m.retire()
		})
	}
	next[name] = m
	q.models.Store(&next)
	return m
}

// Picked records that the load counts of an engine now include a leg of the request in this role.
func (r *Request) Picked(role instance.Role) {
	if r.queue == nil {
		return
	}
	r.queue.out.add(pending{uncached: -r.pending.uncached})
	r.pending.uncached = 0
	if role == instance.Decode {
		r.queue.out.add(pending{tokens: -r.pending.tokens, streams: -r.pending.streams})
		r.pending = pending{}
	}
}

// Prefilled records that an engine has computed the prompt: another one may be sent.
func (r *Request) Prefilled() {
	if r.queue != nil && r.queue.waiting.Load() > 0 {
		r.queue.dispatch()
	}
}

// Placed reports whether the request has a place: it was admitted and has not ended.
func (r *Request) Placed() bool { return r.queue != nil }

// Release ends a request that no engine has computed.
func (r *Request) Release() {
	r.work = work{}
	r.Done(0, 0, 0)
}

// Done ends the request. uncached is the number of prompt tokens that were computed, output the number of
// answer tokens. tokens is the length of the prompt; if it is 0, no engine has reported it, and the estimate
// is used. Only the first call counts.
func (r *Request) Done(tokens, uncached, output int) {
	m := r.queue
	if m == nil {
		return
	}
	r.queue = nil
	m.out.add(pending{-r.pending.uncached, -r.pending.tokens, -r.pending.streams})
	is := work{uncached: float64(uncached), output: float64(output)}
	if tokens == 0 {
		is.uncached = r.work.uncached
	}
	r.account.fresh.Add(int64(is.cost()) - int64(r.cost))
	r.account.running.Add(-1)
	if tokens > 0 {
		m.learnMiss(float64(uncached) / float64(tokens))
	}
	if m.waiting.Load() > 0 {
		m.dispatch()
	}
}

// Wake dispatches the requests that fit now. It is called when the load of engines or the membership has
// changed.
func (q *Queues) Wake() {
	if q == nil {
		return
	}
	for _, m := range *q.models.Load() {
		if m.waiting.Load() > 0 {
			m.stale.Store(true)
			m.dispatch()
		}
	}
}

// Close refuses all requests that wait, and later ones that would have to. It is called once.
func (q *Queues) Close() {
	if q == nil {
		return
	}
	close(q.closed)
	for _, m := range *q.models.Load() {
		m.refuseAll()
	}
}

const (
	// tick is the time between two checks of a queue with waiting requests.
	tick = 20 * time.Millisecond
	// refresh is the time between two plans of a used queue, busyRefresh if requests wait in it.
	refresh, busyRefresh = time.Second, 250 * time.Millisecond
)

func (q *Queues) wakeRun() {
	select {
	case q.active <- struct{}{}:
	default:
	}
}

// Run keeps the queues up to date until ctx ends. It does nothing while no request arrives.
func (q *Queues) Run(ctx context.Context) {
	if q == nil {
		return
	}
	for due := time.Now().Add(time.Hour); ; {
		select {
		case <-ctx.Done():
			return
		case <-q.active:
		case <-time.After(time.Until(due)):
			for _, m := range *q.models.Load() {
				m.tick()
			}
			due = time.Now().Add(time.Hour)
		}
		for _, m := range *q.models.Load() {
			if next := time.Now().Add(m.interval()); next.Before(due) {
				due = next
			}
		}
	}
}

// jitter returns a duration between 0.9 and 1.3 times d, and at least a second, so that clients do not return
// together.
func jitter(d time.Duration) time.Duration {
	return max(time.Second, time.Duration(float64(d)*(0.9+0.4*rand.Float64())))
}
