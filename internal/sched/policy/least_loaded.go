package policy

import "math"

// leastLoaded chooses the candidate with the least load relative to its weight. Among equal ones
// it chooses at random in proportion to the weights, or, among many, the next in turn.
type leastLoaded struct {
	turns
	rand func() float64
}

func newLeastLoaded(o Options) Policy {
	p := &leastLoaded{rand: o.Rand}
	p.begin(&o)
	return p
}

const (
	// manyLoads is the number of candidates above which a sample is tried for an idle one first:
	// the next in turn, and random ones.
	manyLoads = 32
	// draws is the size of that sample. An idle candidate in it is chosen at once.
	draws = 8
)

// Choose implements Policy.
func (p *leastLoaded) Choose(c Candidates, r Request) (at, cached int) {
	if r.Explanation != nil {
		for i := range c.Len() {
			r.Explanation.Score(&c, i, "legs", c.legs(i))
		}
	}
	if c.Even() && c.Len() > manyLoads {
		i, _ := p.take(&c, &r)
		for range draws {
			if c.Load(i) <= 0 {
				return i, 0
			}
			i, _ = c.Share(r.chance(p.rand))
		}
	}
	if c.Even() {
		return p.leastEven(&c, &r), 0
	}
	at, least, tied := 0, math.Inf(1), 0.0 // tied: the weights of all that have least
	for i := range c.Len() {
		load := c.Load(i)
		if load > least {
			continue
		}
		if load < least {
			at, least, tied = i, load, 0
		}
		tied += c.Weight(i)
	}
	point := r.chance(p.rand)*tied - c.Weight(at)
	for i := at + 1; point > 0 && i < c.Len(); i++ {
		if c.Load(i) == least {
			at, point = i, point-c.Weight(i)
		}
	}
	return at, 0
}

// leastEven is the same where all have the same weight.
func (p *leastLoaded) leastEven(c *Candidates, r *Request) int {
	at, least, tied := 0, int64(math.MaxInt64), 0
	for i := range c.Len() {
		sum := c.At(i).Load.sum.Load()
		if sum > least {
			continue
		}
		if sum < least {
			at, least, tied = i, sum, 0
		}
		tied++
	}
	n := int(r.chance(p.rand) * float64(tied))
	for i := at + 1; n > 0 && i < c.Len(); i++ { // loads may have changed: at stays one of those that had least
		if c.At(i).Load.sum.Load() == least {
			at, n = i, n-1
		}
	}
	return at
}
