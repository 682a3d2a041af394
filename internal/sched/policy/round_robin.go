package policy

import "sync/atomic"

// roundRobin picks every candidate in its turn, one after the other.
type roundRobin struct{ turns }

func newRoundRobin(o Options) Policy {
	p := &roundRobin{}
	p.begin(&o)
	return p
}

// Choose implements Policy.
func (p *roundRobin) Choose(c Candidates, r Request) (at, cached int) {
	at, _ = p.take(&c, &r)
	r.Explanation.Score(&c, at, "turn", 1)
	return at, 0
}

// turns tells whose turn it is. Where weights differ, and for requests that leave some
// out, turns are in proportion to the weights, spread as evenly as turns can be.
type turns struct {
	next   atomic.Uint64
	spread atomic.Uint64
}

// begin sets which turn is the first.
func (t *turns) begin(o *Options) {
	t.next.Store(o.Start)
	t.spread.Store(o.Start)
}

// take returns the candidate whose turn it is, and the point where its own weight begins
// when all are laid end to end from 0 to 1. The turn is taken.
func (t *turns) take(c *Candidates, r *Request) (at int, begins float64) {
	if c.Even() && !c.Narrowed() {
		n := uint64(c.Len())
		at = int(next(&t.next, r) % n)
		return at, float64(at) / float64(n)
	}
	return c.Share(golden(next(&t.spread, r)))
}

// next returns the next turn, and takes it.
func next(of *atomic.Uint64, r *Request) uint64 {
	if r.Tentative == nil {
		return of.Add(1) - 1
	}
	r.noting(func() { of.Add(1) })
	return of.Load()
}

// golden returns the n-th of a sequence of points from 0 up to 1 (multiples of the
// golden ratio, without their whole part). However few of them are taken, and
// whichever every so many, each part of the range gets its share of them, and
// nearly at even distances.
func golden(n uint64) float64 {
	const ratio = 0x9e37_79b9_7f4a_7c15 // of 2^64
	return unit(n * ratio)
}

// unit makes a number from 0 up to 1 of all bits.
func unit(bits uint64) float64 { return float64(bits>>11) / (1 << 53) }
