package engine

import (
	"time"

	"github.com/pdmesh/pdmesh/sim/fakevllm/kvcache"
)

// Request is one request inside a core: its place in the batch, its turn to be computed,
// what it holds of the cache, and its clock. One goroutine uses it.
type Request struct {
	Core    *Core
	Life    *Lifetime
	Arrived time.Time

	prompts [][]int
	tokens  int  // of all prompts
	placed  bool // runs, and holds a place among MaxRunning
	turn    bool // it is this request's turn to be computed
	holds   []*kvcache.Hold
	hits    int // tokens found in the cache
	last    int // the last token generated
	kept    bool
	pace    pace
}

// Loaded is what a connector has brought of the prompts.
type Loaded struct {
	Tokens int
	Failed bool // the request ends by that, and nothing is computed
	Wrong  bool // it is of another prompt, so that no request may find it in the cache
}

// Queue waits for a free place among MaxRunning, and for the request's turn; false means that
// the client left or the engine died. Prompts of one salt find each other's blocks.
func (r *Request) Queue(prompts [][]int, salt string) bool {
	c := r.Core
	if !r.step() {
		return false
	}
	r.prompts = prompts
	for _, ids := range prompts {
		r.tokens += len(ids)
	}
	if c.slots != nil || c.queues() {
		c.waiting.Add(1)
		defer c.waiting.Add(-1)
	}
	if c.slots != nil && !r.Life.enter(c.slots) {
		return false
	}
	if !r.schedule(salt) || !r.step() {
		r.endTurn()
		r.Detach()()
		if c.slots != nil {
			<-c.slots
		}
		return false
	}
	c.Stats.Queue.Observe(time.Since(r.Arrived))
	c.running.Add(1)
	r.placed = true
	return true
}

// CountPrompts counts the prompts of a request that begins to run, for which a connector
// has loaded this number of tokens.
func (r *Request) CountPrompts(loaded int) {
	c, hits := r.Core, loaded
	if c.cache != nil {
		hits = r.hits
	}
	c.Count.PromptTokens.Add(int64(r.tokens))
	c.Stats.PromptTokens.Add(int64(r.tokens))
	c.Stats.CacheQueries.Add(int64(r.tokens))
	c.Stats.CacheHits.Add(int64(hits))
	c.Count.CacheQueries.Add(int64(r.tokens))
	c.Count.CacheHits.Add(int64(hits))
}

// Generated counts a token of the answer with that index.
func (r *Request) Generated(index, id int) {
	r.Core.Count.GenerationTokens.Add(1)
	r.Core.Stats.GenerationTokens.Add(1)
	if len(r.holds) == 0 || index != 0 {
		return
	}
	if r.kept { // a token is in the cache once another follows it
		r.holds[0].Append(r.last)
	}
	r.last, r.kept = id, true
}

// Release releases the slot and the part of the cache that is held, once.
func (r *Request) Release() {
	r.endTurn()
	r.Detach()()
	if !r.placed {
		return
	}
	r.placed = false
	r.Core.running.Add(-1)
	if r.Core.slots != nil {
		<-r.Core.slots
	}
}

// Detach returns a function that releases the held blocks of the cache.
func (r *Request) Detach() (free func()) {
	holds := r.holds
	r.holds = nil
	return func() {
		for _, h := range holds {
			h.Free()
		}
	}
}

// await waits for the request's turn.
func (r *Request) await() bool {
	t := &r.Core.turns
	select {
	case t.busy <- struct{}{}:
		t.idle()
	default:
		if !r.Life.enter(t.busy) {
			return false
		}
	}
	r.turn = true
	return true
}

func (r *Request) endTurn() {
	if r.turn {
		r.turn = false
		<-r.Core.turns.busy
	}
}

// schedule waits for the request's turn and for room in the cache, and looks up
// what is in it already.
func (r *Request) schedule(salt string) bool {
	c := r.Core
	if !c.queues() {
		return true
	}
	if !r.await() {
		return false
	}
	if c.cache == nil {
		return true
	}
	for i, ids := range r.prompts {
		h := c.cache.TryTake(ids, salt)
		for waited := false; h == nil && i == 0; waited = true {
			if !r.awaitRoom() {
				r.endTurn()
				return false
			}
			if h = c.cache.TryTake(ids, salt); h != nil && !waited {
				c.turns.idle()
			}
		}
		if h == nil {
			continue // a further prompt without room is computed without the cache
		}
		r.holds = append(r.holds, h)
		r.hits += h.Cached()
	}
	return true
}

// recheck is how often a prompt without room looks whether a lease has ended.
const recheck = 100 * time.Millisecond

func (r *Request) awaitRoom() bool {
	timer := time.NewTimer(recheck)
	defer timer.Stop()
	select {
	case <-r.Core.cache.Room():
	case <-timer.C:
		r.Core.EndLeases()
	case <-r.Life.Client:
		return false
	case <-r.Life.Engine:
		return false
	}
	return true
}

// pace is the clock of one request: the first token after the TTFT, the
// others ITL apart, on a fixed schedule so that delays don't add up.
type pace struct {
	next time.Time
	itl  time.Duration
	last time.Time
}

// Prefill computes what was neither found nor loaded, and waits for the first token; the
// others are to come itl apart. It reports how many tokens needed no computing.
func (r *Request) Prefill(l Loaded, ttft, itl time.Duration) (cached int, ok bool) {
	c, began := r.Core, time.Now()
	cached, ok = r.compute(l)
	ok = ok && r.Life.Wait(ttft) && r.step()
	now := time.Now()
	if ok {
		c.Stats.Prefill.Observe(now.Sub(began))
		c.Stats.TTFT.Observe(now.Sub(r.Arrived))
	}
	r.pace = pace{next: now.Add(itl + c.drag()), itl: itl, last: now}
	return cached, ok
}

// Tick waits for the following token; false means that the client left or the engine died.
func (r *Request) Tick() bool {
	p := &r.pace
	if p.itl <= 0 {
		return r.Life.Alive() && r.step()
	}
	ok := r.Life.Wait(time.Until(p.next)) && r.step()
	p.next = p.next.Add(p.itl + r.Core.drag())
	now := time.Now()
	r.Core.Stats.ITL.Observe(now.Sub(p.last))
	p.last = now
	return ok
}

// compute lets the time pass that the connector needs to load what is elsewhere,
// and the engine to compute the rest.
func (r *Request) compute(l Loaded) (cached int, ok bool) {
	c := r.Core
	cached = l.Tokens
	if !c.queues() {
		return cached, true
	}
	loaded := max(0, l.Tokens-r.hits) // the connector brings these
	cached = max(l.Tokens, r.hits)
	if l.Failed {
		r.endTurn()
		return cached, true
	}
	if loaded > 0 {
		r.endTurn()
		if c.LoadRate > 0 && !r.Life.Wait(seconds(float64(loaded)/c.LoadRate)) {
			return cached, false
		}
	}
	rest := r.tokens - cached
	c.Count.ComputedTokens.Add(int64(rest))
	if c.PrefillRate > 0 && rest > 1 {
		if !r.turn && !r.await() { // a load has failed
			return cached, false
		}
		c.prefill.Store(1)
		ok := r.Life.Wait(time.Until(c.turns.work(seconds(float64(rest) / c.PrefillRate))))
		c.prefill.Store(0)
		if !ok {
			c.turns.idle() // the next turn does not wait for what is not computed
			return cached, false
		}
	}
	if !l.Wrong {
		for _, h := range r.holds {
			h.Computed()
		}
	}
	r.endTurn()
	return cached, true
}

// Lifetime is how long a request is worth working on: until its client leaves, a write to
// it fails, or the engine dies. One goroutine uses it.
type Lifetime struct {
	Client <-chan struct{} // closed when the client has left
	Engine <-chan struct{} // closed when the engine has died

	broken bool
	timer  *time.Timer
}

// Break reports whether a write to the client has failed.
func (l *Lifetime) Break() { l.broken = true }

// Broken reports whether one has.
func (l *Lifetime) Broken() bool { return l.broken }

// Alive reports whether it goes on.
func (l *Lifetime) Alive() bool {
	select {
	case <-l.Client:
		return false
	case <-l.Engine:
		return false
	default:
		return !l.broken
	}
}

// Dead reports whether the engine has died.
func (l *Lifetime) Dead() bool {
	select {
	case <-l.Engine:
		return true
	default:
		return false
	}
}

// Wait lets time pass; false means that the client left or the engine died.
func (l *Lifetime) Wait(d time.Duration) bool {
	if d <= 0 {
		return l.Alive()
	}
	if l.timer == nil {
		l.timer = time.NewTimer(d)
	} else {
		l.timer.Reset(d)
	}
	ok := await(l, l.timer.C)
	l.timer.Stop()
	return ok
}

// await waits for an element of a channel, or its end; false means the same as of Wait.
func await[T any](l *Lifetime, c <-chan T) bool {
	select {
	case <-c:
		return true
	case <-l.Client:
	case <-l.Engine:
	}
	return false
}

// enter waits until a channel has space; false means the same as of Wait. Channels are fair.
func (l *Lifetime) enter(c chan<- struct{}) bool {
	select {
	case c <- struct{}{}:
		return true
	case <-l.Client:
	case <-l.Engine:
	}
	return false
}
