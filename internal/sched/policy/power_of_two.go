package policy

// powerOfTwo looks at two candidates, the one whose turn it is and another one by chance, in
// proportion to the weights, and takes the one that holds less in proportion to its
// weight. Of two drawn by chance the first would sometimes be one that has just had a
// request, and every candidate waits longer at times: with a thousand of them that costs a
// tenth of a small request, in connections that are opened again or are in no cache of the
// processor any more.
type powerOfTwo struct {
	turns
	rand func() float64
}

func newPowerOfTwo(o Options) Policy {
	p := &powerOfTwo{rand: o.Rand}
	p.begin(&o)
	return p
}

// Choose implements Policy.
func (p *powerOfTwo) Choose(c Candidates, r Request) (at, cached int) {
	first, begins := p.take(&c, &r)
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
