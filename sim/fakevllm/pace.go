package fakevllm

import (
	"time"

	"github.com/pdmesh/pdmesh/sim/fakevllm/fault"
)

// pace is the engine's clock for one request: the first token after TTFT, the
// others ITL apart, on a fixed schedule so that delays don't add up.
type pace struct {
	next time.Time
	itl  time.Duration
	last time.Time
}

// first waits for the first token.
func (x *exchange) first(j *job) (pace, bool) {
	o := &x.life.server.opt
	ttft, itl := o.TTFT, o.ITL
	if f := x.fault; f != nil && f.Kind == fault.Slow {
		ttft += f.TTFT
		itl += f.ITL
	}
	if j.fetching != nil && !x.awaitFetch(j) {
		return pace{}, false
	}
	began := time.Now()
	ok := x.compute(j) && x.wait(ttft)
	now := time.Now()
	if ok {
		x.prefilled(j)
		x.core.stats.Prefill.Observe(now.Sub(began))
		x.core.stats.TTFT.Observe(now.Sub(j.arrived))
	}
	return pace{next: now.Add(itl + x.core.drag(x.core.running.Load())), itl: itl, last: now}, ok
}

// tick waits for the following token.
func (x *exchange) tick(p *pace) bool {
	if p.itl <= 0 {
		return x.alive()
	}
	ok := x.wait(time.Until(p.next))
	p.next = p.next.Add(p.itl + x.core.drag(x.core.running.Load()))
	now := time.Now()
	x.core.stats.ITL.Observe(now.Sub(p.last))
	p.last = now
	return ok
}

// counted adds generated tokens to the engine's counters.
func (l *life) generated(c *core, n int) {
	l.count.generationTokens.Add(int64(n))
	c.stats.GenerationTokens.Add(int64(n))
}
