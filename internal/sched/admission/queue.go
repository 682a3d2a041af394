package admission

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched/estimate"
)

// queue has the requests of one model, or of its engines with some labels. Requests that fit at once take no
// lock.
type queue struct {
	name   string // see instance.QueueName
	model  string
	labels instance.Selector
	opts   *Options
	closed <-chan struct{}
	others *atomic.Pointer[Others]

	plan     atomic.Pointer[plan]
	accounts atomic.Pointer[map[accountKey]*account]
	waiting  atomic.Int64 // len of order
	used     atomic.Bool  // false: the next request makes a new plan
	stale    atomic.Bool  // a new plan is needed at once
	refused  atomic.Int64
	again    atomic.Int64 // requests in Queues.Again
	out      outgoing
	miss     atomic.Uint64 // bits of the share of uncached prompt tokens; 0: unknown

	mu    sync.Mutex // guards all below, and the fields of accounts that are not atomic; never held across I/O
	order order
	meter meter
	// idle is the number of consecutive ticks at which a request of class batch would have fitted.
	idle int
	// last is the arrival of the first request after a pause; see freshen.
	last time.Time
	// overdue is the time from which the next request may be dispatched at its deadline.
	overdue time.Time
	// retired is set when Queues drops the queue: then no request may wait in it.
	retired bool
}

type accountKey struct {
	name  string
	class Class
}

// outgoing is the sum of Request.pending over all requests.
type outgoing struct{ uncached, tokens, streams atomic.Int64 }

func (o *outgoing) add(p pending) {
	if p.uncached != 0 {
		o.uncached.Add(p.uncached)
	}
	if p.streams != 0 {
		o.tokens.Add(p.tokens)
		o.streams.Add(p.streams)
	}
}

func (o *outgoing) load() pending {
	return pending{o.uncached.Load(), o.tokens.Load(), o.streams.Load()}
}

// meter measures the cost that is dispatched per second while requests wait.
type meter struct {
	rate   float64
	cost   float64       // since the last update of rate
	passed time.Duration // time since then, until at
	at     time.Time     // of the last call of note; zero while no request waits
}

// note adds the cost that was dispatched, and updates the rate every busyRefresh.
func (m *meter) note(cost float64, now time.Time) {
	if !m.at.IsZero() {
		m.passed += now.Sub(m.at)
	}
	m.at = now
	m.cost += cost
	if m.passed < busyRefresh {
		return
	}
	passed := m.passed.Seconds()
	weight := min(1, passed/5)
	if m.rate == 0 {
		weight = 1
	}
	m.rate += (m.cost/passed - m.rate) * weight
	m.cost, m.passed = 0, 0
}

// pause is called when no request waits any more: the time until the next one does not count.
func (m *meter) pause() { m.at = time.Time{} }

// estimate predicts the work of a request, and finds its account.
func (m *queue) estimate(r *Request, p *plan) {
	miss := 1.0
	if bits := m.miss.Load(); bits != 0 {
		miss = math.Float64frombits(bits)
	}
	tokens := float64(m.opts.Tokens(m.model, r.Prompt))
	r.work = work{uncached: tokens * miss, tokens: tokens, output: p.rates.Output}
	r.cost = r.work.cost()
	k := accountKey{r.Key, r.Class}
	if r.account = (*m.accounts.Load())[k]; r.account == nil {
		r.account = m.open(k)
	}
}

// refine corrects the estimate by the contents of the engines' caches.
func (r *Request) refine() {
	if r.Cache == nil {
		return
	}
	if cached, known := r.Cache.Cached(); known {
		r.work.uncached = max(0, r.work.tokens-float64(cached))
		r.cost = r.work.cost()
	}
}

// maxAccounts bounds the accounts of a queue; further keys share an account.
const maxAccounts = 3 * 1024

// open returns the account of a key, and creates it if necessary.
func (m *queue) open(k accountKey) *account {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := *m.accounts.Load()
	if a := now[k]; a != nil {
		return a
	}
	if len(now) >= maxAccounts {
		k.name = ""
		if a := now[k]; a != nil {
			return a
		}
	}
	a := &account{name: k.name, class: k.class, at: m.opts.Now(), others: m.others.Load().attained(m.name, k)}
	next := maps.Clone(now)
	next[k] = a
	m.accounts.Store(&next)
	m.order.accounts[k.class] = append(m.order.accounts[k.class], a)
	return a
}

// learnMiss learns the share of a prompt that was computed. One of two concurrent calls may be lost.
func (m *queue) learnMiss(share float64) {
	was := 1.0
	if bits := m.miss.Load(); bits != 0 {
		was = math.Float64frombits(bits)
	}
	m.miss.Store(math.Float64bits(was + (max(0, min(share, 1))-was)/32))
}

// begin counts a request as being served.
func (m *queue) begin(r *Request) {
	r.queue = m
	r.pending = pending{uncached: int64(r.work.uncached), tokens: int64(r.work.tokens), streams: 1}
	m.out.add(r.pending)
	r.account.fresh.Add(int64(r.cost))
	r.account.running.Add(1)
}

// enqueue makes a request wait. If it need not wait, r.ready is nil; an error refuses it.
func (m *queue) enqueue(r *Request, now time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.retired { // as for a model without engines
		return nil
	}
	m.replan(now)
	r.deadline = r.arrived.Add(r.limit())
	select {
	case <-m.closed:
		return m.refusal(r, ReasonStopping)
	default:
	}
	if m.order.len() == 0 && m.plan.Load().fits(r.work, r.Class, m.out.load()) {
		m.begin(r)
		return nil
	}
	if m.late(r) {
		return m.refusal(r, ReasonWait)
	}
	excess := func(waiting int, bytes int64) bool {
		return waiting >= m.opts.MaxWaiting || bytes+r.Bytes > m.opts.MaxBytes
	}
	size, own := (*account).number, int64(1)
	if _, bytes := m.order.upTo(classes - 1); bytes+r.Bytes > m.opts.MaxBytes {
		size, own = (*account).bytes, r.Bytes
	}
	if excess(m.order.upTo(r.Class)) {
		// Another key makes space only if it still has as much as this one afterwards.
		if a := m.order.largest(r.Class, size); a == nil || size(a)-own < size(r.account)+own {
			return m.refusal(r, ReasonFull)
		}
	}
	for excess(m.order.upTo(classes - 1)) {
		last := m.order.newest(size)
		m.end(last, m.refusal(last, ReasonFull))
	}
	r.ready = make(chan error, 1)
	m.order.add(r, now)
	if m.order.len() == 1 && m.plan.Load().share < 1 { // the share was computed without a backlog
		m.stale.Store(true)
		m.replan(now)
	}
	m.waiting.Add(1)
	m.dispatchLocked(now)
	return nil
}

// retire reports whether no request waits, so that the queue may be dropped.
func (m *queue) retire() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.retired = m.order.len() == 0
	return m.retired
}

// limit returns the longest time that a request may wait.
func (r *Request) limit() time.Duration {
	if r.Timeout > 0 {
		return min(r.Timeout, r.Class.Bound())
	}
	return r.Class.Bound()
}

// late reports whether engines report that they are full, and the request is predicted to wait longer than
// its deadline allows.
func (m *queue) late(r *Request) bool {
	p := m.plan.Load()
	return p.mayRefuse() && m.predict(r.account, r.cost, p).Seconds() > certain*r.allowance(p).Seconds()
}

// mayRefuse reports whether a prediction may refuse a request.
func (p *plan) mayRefuse() bool { return p.rates.Samples() >= estimate.Reliable && p.full() }

// allowance returns the part of its time that a request may spend waiting, or a negative duration if its own
// prompt takes longer than the timeout.
func (r *Request) allowance(p *plan) time.Duration {
	if r.Timeout == 0 {
		return r.limit()
	}
	queued := p.target / max(p.rates.Prefill.Each, 1e-9)
	if p.rates.TTFT(queued, r.work.uncached, r.work.tokens) > r.Timeout.Seconds() {
		return -1
	}
	// Use the time of an average prompt: with their own, long prompts would be refused far more often.
	return max(r.limit()-seconds(p.rates.TTFT(queued, p.rates.Uncached, 0)), r.limit()/4)
}

// certain is the part of its allowance that a request may be predicted to wait: the real wait is up to twice
// as long. It was tuned with bench/ground: nine of ten admitted requests are in time at three times the load
// that fills the fleet.
const certain = 0.55

// predict returns the predicted wait of a request: until the engines have computed their present work, half
// of which is done on average, and the work ahead of it. While prefill has capacity, decode is the
// bottleneck, and the measured rate counts.
func (m *queue) predict(a *account, cost float64, p *plan) time.Duration {
	rate, busy := 0.0, 0.0
	for i := range p.prefill {
		if each := p.prefill[i].each; each > 0 && p.rates.Uncached > 0 {
			rate += (1 + outputCost*p.rates.Output/p.rates.Uncached) / each * p.share
			busy += p.waiting(&p.prefill[i]) / 2 / float64(len(p.prefill))
		}
	}
	if m.meter.rate > 0 && (rate == 0 || p.prefillFits(1, float64(m.out.uncached.Load()), 0)) {
		rate, busy = m.meter.rate, 0
	}
	if rate == 0 {
		return 0
	}
	return seconds(m.order.ahead(a, cost)/rate + busy)
}

func seconds(s float64) time.Duration {
	return time.Duration(min(s, float64(math.MaxInt32)) * float64(time.Second))
}

// refusal returns the error of a request. The caller holds the lock.
func (m *queue) refusal(r *Request, reason string) error {
	wait := time.Duration(0)
	if reason != ReasonStopping {
		wait = m.predict(r.account, r.cost, m.plan.Load())
	}
	return &RefusedError{Reason: reason, Wait: jitter(wait), queue: m}
}

// observe returns the result of a request that does not fit.
func (m *queue) observe(r *Request, now time.Time) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.replan(now)
	p := m.plan.Load()
	if p.fits(r.work, r.Class, m.out.load()) {
		return ResultPass
	}
	if !p.mayRefuse() || p.queued() <= r.allowance(p) {
		return ResultWait
	}
	return ResultRefuse
}

// queued returns the shortest time that work waits in the engines beyond the target.
func (p *plan) queued() time.Duration {
	least := math.Inf(1)
	for i := range p.prefill {
		s := &p.prefill[i]
		least = min(least, s.each*(float64(s.load.Waiting.Load())+s.load.Others.Waiting.Load())-p.target)
	}
	if math.IsInf(least, 1) {
		return 0
	}
	return seconds(max(0, least))
}

// end removes a request from the queue and ends its wait with err. The caller holds the lock.
func (m *queue) end(r *Request, err error) {
	m.drop(r)
	r.ready <- err
}

// drop removes a request that is not dispatched. The caller holds the lock.
func (m *queue) drop(r *Request) {
	m.order.remove(r)
	m.waiting.Add(-1)
	if m.order.len() == 0 {
		m.meter.pause()
	}
}

// leave removes the request of a client that has left. It returns false if its wait has ended.
func (m *queue) leave(r *Request) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(r.ready) > 0 {
		return false
	}
	m.drop(r)
	return true
}

// dispatch sends the requests that fit now.
func (m *queue) dispatch() {
	now := m.opts.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dispatchLocked(now)
}

func (m *queue) dispatchLocked(now time.Time) {
	m.replan(now)
	p := m.plan.Load()
	sent := 0.0
	for r := m.order.next(now); r != nil; r = m.order.next(now) {
		c := r.Class
		if m.order.higher(c) {
			c = Interactive // it uses leastShare
		}
		if !p.fits(r.work, c, m.out.load()) || c == Batch && m.yields(r, p) {
			break
		}
		m.send(r)
		sent += r.cost
	}
	m.meter.note(sent, now)
	if m.order.len() == 0 {
		m.meter.pause()
	}
}

// yields reports whether a request of class batch still leaves an engine idle. It does so for about an eighth
// of the time that its prompt takes, so that a request of a higher class that arrives meanwhile does not wait
// behind it. This part was tuned with bench/ground.
func (m *queue) yields(r *Request, p *plan) bool {
	return float64(m.idle) < r.work.uncached*p.rates.Prefill.Each/8/tick.Seconds()-1 && m.order.serves(Interactive, Default)
}

// send dispatches a request. The caller holds the lock.
func (m *queue) send(r *Request) {
	m.order.dispatch(r)
	m.waiting.Add(-1)
	m.begin(r)
	r.ready <- nil
}

// freshen makes a new plan for the first request after a pause.
func (m *queue) freshen() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.used.Store(true)
	m.stale.Store(true)
	m.last = m.opts.Now()
	m.replan(m.last)
}

// replan makes a new plan if the last one is old. The caller holds the lock.
func (m *queue) replan(now time.Time) {
	if last := m.plan.Load(); m.stale.Swap(false) || now.Sub(last.at) >= busyRefresh {
		next := m.opts.newPlan(m, now, last)
		m.share(next)
		m.plan.Store(next)
	}
}

// tick ends waits at their deadlines. If engines report that they are full, it refuses the requests.
// Otherwise it dispatches one per refresh, and refuses others with a timeout. An empty queue is unused until
// its next request.
func (m *queue) tick() {
	now := m.opts.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.order.len() == 0 {
		m.used.Store(false)
		return
	}
	m.idle++
	m.dispatchLocked(now)
	p := m.plan.Load()
	if !p.fits(work{}, Batch, m.out.load()) {
		m.idle = 0
	}
	refuse, overdue := p.mayRefuse(), m.order.overdue(now)
	var first *Request
	if len(overdue) > 0 && !refuse && !now.Before(m.overdue) {
		first = slices.MinFunc(overdue, func(a, b *Request) int {
			return cmp.Or(cmp.Compare(a.Class, b.Class), byDeadline(a, b))
		})
		// At most one per report of the engines, in all proxies: it exceeds the capacity.
		m.overdue = now.Add(time.Duration(float64(refresh) / p.share))
		m.send(first)
	}
	for _, r := range overdue {
		if r != first && (refuse || r.Timeout > 0) { // the client does not wait any longer
			m.end(r, m.refusal(r, ReasonDeadline))
		}
	}
}

// interval returns the time between two calls of tick.
func (m *queue) interval() time.Duration {
	switch {
	case m.waiting.Load() > 0:
		return tick
	case m.used.Load():
		return refresh
	}
	return time.Hour
}

// refuseAll refuses all waiting requests because the proxy stops.
func (m *queue) refuseAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for r := m.order.newest((*account).number); r != nil; r = m.order.newest((*account).number) {
		m.end(r, m.refusal(r, ReasonStopping))
	}
}
