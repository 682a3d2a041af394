package estimate

// line is how long something takes by how much there is to do: a straight line through
// what was seen, of which the latest counts most. Nothing in it is below 0.
type line struct{ n, x, y, xx, xy float64 } // n: weight of all that was seen; the rest are sums

const (
	// decay is what the past keeps of its weight with every new sample: half is
	// forgotten after some 45.
	decay = 1 - 1.0/64
	// minSamples samples are believed.
	minSamples = 4
	// outlier is how many times as much as expected one sample may say. What has really
	// changed is learned all the same, with some more samples.
	outlier = 4
)

func (l *line) known() bool { return l.n > minSamples-0.5 }

// learn takes in a sample: so much work, so many seconds.
func (l *line) learn(work, seconds float64) {
	if l.known() {
		if usual := l.at(work); usual > 0 {
			seconds = min(seconds, outlier*usual)
		}
	}
	for _, sum := range []*float64{&l.n, &l.x, &l.y, &l.xx, &l.xy} {
		*sum *= decay
	}
	l.n++
	l.x += work
	l.y += seconds
	l.xx += work * work
	l.xy += work * seconds
}

// parts are the seconds that any work takes, and those of each unit of it.
func (l *line) parts() (fixed, each float64) {
	if l.n == 0 {
		return 0, 0
	}
	x, y := l.x/l.n, l.y/l.n
	variance := l.xx/l.n - x*x
	if variance <= 0.01*x*x { // all alike: they do not tell the parts from each other
		if x == 0 {
			return y, 0
		}
		return 0, y / x
	}
	each = max(0, (l.xy/l.n-x*y)/variance)
	if fixed = y - each*x; fixed < 0 {
		return 0, y / x
	}
	return fixed, each
}

func (l *line) at(work float64) float64 {
	fixed, each := l.parts()
	return fixed + each*work
}
