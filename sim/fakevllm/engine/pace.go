package engine

import "time"

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

// Paced reports whether time passes between tokens.
func (r *Request) Paced() bool { return r.pace.itl > 0 }

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
			c.turns.idle() // who comes next does not wait for what nobody computes
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
