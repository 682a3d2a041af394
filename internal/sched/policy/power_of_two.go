package policy

// powerOfTwo draws two candidates by chance, in proportion to the weights, and takes
// the one that holds less in proportion to its weight.
type powerOfTwo struct{ rand func() float64 }

func newPowerOfTwo(o Options) Policy { return powerOfTwo{o.Rand} }

// Choose implements Policy.
func (p powerOfTwo) Choose(c Candidates, r Request) (at, cached int) {
	first, begins := c.Share(r.chance(p.rand))
	r.Explanation.Score(&c, first, "legs", c.legs(first))
	if c.Len() == 1 {
		return first, 0
	}
	// The second is drawn from what the first leaves of the weights.
	part := c.Part(first)
	point := r.chance(p.rand) * (1 - part)
	if point >= begins {
		point += part
	}
	second, _ := c.Share(point)
	r.Explanation.Score(&c, second, "legs", c.legs(second))
	if c.Load(second) < c.Load(first) {
		return second, 0
	}
	return first, 0
}
