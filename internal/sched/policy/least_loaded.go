package policy

import "math"

// leastLoaded takes the candidate that holds least in proportion to its weight;
// among several of those one by chance.
type leastLoaded struct{ rand func() float64 }

func newLeastLoaded(o Options) Policy { return leastLoaded{o.Rand} }

// Choose implements Policy.
func (p leastLoaded) Choose(c Candidates, _ Request) int {
	best, least, tied := 0, math.Inf(1), 0.0 // tied: the weights of all that hold least
	for i := range c.Len() {
		switch load := c.Load(i); {
		case load < least:
			best, least, tied = i, load, c.Weight(i)
		case load == least:
			tied += c.Weight(i)
		}
	}
	if tied == c.Weight(best) {
		return best
	}
	until := p.rand() * tied
	for i := best; i < c.Len() && until >= 0; i++ {
		if c.Load(i) <= least { // else it got something meanwhile
			best, until = i, until-c.Weight(i)
		}
	}
	return best
}
