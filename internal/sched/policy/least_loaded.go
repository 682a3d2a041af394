package policy

import "math"

// leastLoaded takes the candidate that holds least in proportion to its weight;
// among several of those one by chance, in proportion to the weights.
type leastLoaded struct{ rand func() float64 }

func newLeastLoaded(o Options) Policy { return leastLoaded{o.Rand} }

// Choose implements Policy.
func (p leastLoaded) Choose(c Candidates, _ Request) (at, cached int) {
	best, least, tied := 0, math.Inf(1), 0.0 // tied: the weights of all that hold least
	seed := math.Float64bits(p.rand())
	for i := range c.Len() {
		load := c.Load(i)
		if load > least {
			continue
		}
		weight := c.Weight(i)
		if load < least {
			best, least, tied = i, load, weight
			continue
		}
		// The next of several takes the place of the one before with this chance:
		// in the end each has it by its weight.
		tied += weight
		if unit(mix(seed+uint64(i)))*tied < weight {
			best = i
		}
	}
	return best, 0
}
