package policy

import "sync/atomic"

// roundRobin gives every candidate its turn, one after the other. Where weights
// differ, and for requests that leave some out, it gives turns in proportion to the
// weights, spread as evenly as turns can be.
type roundRobin struct {
	turn   atomic.Uint64
	spread atomic.Uint64
}

func newRoundRobin(o Options) Policy {
	p := &roundRobin{}
	p.turn.Store(o.Start)
	p.spread.Store(o.Start)
	return p
}

// Choose implements Policy.
func (p *roundRobin) Choose(c Candidates, r Request) (at, cached int) {
	if c.Even() && !c.Narrowed() {
		at = int(next(&p.turn, &r) % uint64(c.Len()))
	} else {
		at, _ = c.Share(golden(next(&p.spread, &r)))
	}
	r.Explanation.Score(&c, at, "turn", 1)
	return at, 0
}

// next gives the next turn, and takes it.
func next(of *atomic.Uint64, r *Request) uint64 {
	if r.Tentative == nil {
		return of.Add(1) - 1
	}
	r.noting(func() { of.Add(1) })
	return of.Load()
}

// golden gives the n-th of a sequence of points from 0 up to 1 (multiples of the
// golden ratio, without their whole part). However few of them are taken, and
// whichever every so many, each part of the range gets its share of them, and
// nearly at even distances.
func golden(n uint64) float64 {
	const ratio = 0x9e37_79b9_7f4a_7c15 // of 2^64
	return unit(n * ratio)
}

// unit makes a number from 0 up to 1 of all bits.
func unit(bits uint64) float64 { return float64(bits>>11) / (1 << 53) }
