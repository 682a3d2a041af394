package policy

// random takes anybody, by chance, in proportion to the weights.
type random struct{ rand func() float64 }

func newRandom(o Options) Policy { return random{o.Rand} }

// Choose implements Policy.
func (p random) Choose(c Candidates, _ Request) (at, cached int) {
	i, _ := c.Share(p.rand())
	return i, 0
}
