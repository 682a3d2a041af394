package policy

import "sync/atomic"

// roundRobin picks the candidates in turn.
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

// turns determines whose turn it is. If weights differ or a request excludes some candidates, turns are
// proportional to the weights and spread as evenly as possible.
type turns struct {
	next   atomic.Uint64
	spread atomic.Uint64
}

// begin sets the first turn.
func (t *turns) begin(o *Options) {
	t.next.Store(o.Start)
	t.spread.Store(o.Start)
}

// take takes a turn. It returns the candidate whose turn it is, and the point in [0, 1) of the
// cumulative weights at which its weight begins.
func (t *turns) take(c *Candidates, r *Request) (at int, begins float64) {
	if c.Even() && !c.Narrowed() {
		n := uint64(c.Len())
		at = int(next(&t.next, r) % n)
		return at, float64(at) / float64(n)
	}
	return c.Share(golden(next(&t.spread, r)))
}

// next takes and returns the next turn.
func next(of *atomic.Uint64, r *Request) uint64 {
	if r.Tentative == nil {
		return of.Add(1) - 1
	}
	r.noting(func() { of.Add(1) })
	return of.Load()
}

// golden returns element n of a sequence of points in [0, 1): the fractional parts of multiples of the golden
// ratio. Any run of the sequence, and any arithmetic subsequence, is spread nearly evenly.
func golden(n uint64) float64 {
	const ratio = 0x9e37_79b9_7f4a_7c15 // of 2^64
	return unit(n * ratio)
}

// unit maps all bits to a number in [0, 1).
func unit(bits uint64) float64 { return float64(bits>>11) / (1 << 53) }
