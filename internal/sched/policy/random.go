package policy

// random chooses any candidate at random, in proportion to the weights.
type random struct{ rand func() float64 }

func newRandom(o Options) Policy { return random{o.Rand} }

// Choose implements Policy.
func (p random) Choose(c Candidates, r Request) (at, cached int) {
	i, _ := c.Share(r.chance(p.rand))
	r.Explanation.Each(&c, "chance", c.Part)
	return i, 0
}
