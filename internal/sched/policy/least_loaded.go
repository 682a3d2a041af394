package policy

import "math"

// leastLoaded chooses the candidate with the least load relative to its weight. Ties are broken at random, in
// proportion to the weights.
type leastLoaded struct{ rand func() float64 }

func newLeastLoaded(o Options) Policy { return leastLoaded{o.Rand} }

// Choose implements Policy.
func (p leastLoaded) Choose(c Candidates, r Request) (at, cached int) {
	r.Explanation.Each(&c, "legs", c.legs)
	return least(&c, r.chance(p.rand), c.Load), 0
}

// least returns the candidate with the least score. Ties are broken in proportion to the weights by draw, a
// number in [0, 1).
func least(c *Candidates, draw float64, score func(i int) float64) (at int) {
	least, tied := math.Inf(1), 0.0 // tied: the sum of the weights of all with the least score
	for i := range c.Len() {
		s := score(i)
		if s > least {
			continue
		}
		if s < least {
			at, least, tied = i, s, 0
		}
		tied += c.Weight(i)
	}
	point := draw*tied - c.Weight(at)
	for i := at + 1; point > 0 && i < c.Len(); i++ { // scores may have changed: at keeps one that had the least
		if score(i) == least {
			at, point = i, point-c.Weight(i)
		}
	}
	return at
}
