package policy

// random chooses any candidate at random, in proportion to the weights.
type random struct{ rand func() float64 }

func newRandom(o Options) Policy { return random{o.Rand} }

// Choose implements Policy.
func (p random) Choose(c Candidates, r Request) (at, cached int) {
	i, _ := c.Share(r.chance(p.rand))
	if r.Explanation != nil {
		for i := range c.Len() {
			r.Explanation.Score(&c, i, "chance", c.Part(i))
		}
	}
	return i, 0
}
