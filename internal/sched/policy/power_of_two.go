package policy

// powerOfTwo compares two candidates, the next in turn and a random one, both in proportion to the weights,
// and chooses the one with the lower load relative to its weight. If both were random, the intervals between
// the requests to a candidate would vary more. With a thousand candidates, that would cost a tenth of the CPU
// time of a small request: connections are reopened or have left the CPU caches.
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
	// Draw the second from the weights without that of the first.
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
