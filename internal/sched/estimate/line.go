package estimate

import "github.com/pdmesh/pdmesh/internal/instance"

// line is the time that work takes, as a linear function of its amount, fitted to the samples. The latest
// samples count most. The line is nowhere below 0.
type line struct {
	n, x, y, xx, xy float64 // n is the weight of all samples, the others are weighted sums
	samples         int
}

const (
	// decay is the part of its weight that a sample keeps with each new one: half is left after about 45.
	decay = 1 - 1.0/64
	// minSamples is the number of samples from which the line is used.
	minSamples = 4
	// outlier bounds the time of a sample, relative to the expected time. A real change is still learned,
	// with a few more samples.
	outlier = 4
)

func (l *line) known() bool { return l.n > minSamples-0.5 }

// learn adds a sample: an amount of work and the seconds that it took.
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
	l.samples++
	l.x += work
	l.y += seconds
	l.xx += work * work
	l.xy += work * seconds
}

// parts returns the fixed seconds of any work, and the seconds for each unit of work.
func (l *line) parts() (fixed, each float64) {
	if l.n == 0 {
		return 0, 0
	}
	x, y := l.x/l.n, l.y/l.n
	variance := l.xx/l.n - x*x
	if variance <= 0.01*x*x { // the samples are too similar to separate the two parts
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

// Pace returns the recent times of an instance; without samples, it is zero. If the instance has several
// ranks, k names one rank by the address in Prefill or Decode.
func (e *Estimator) Pace(k instance.Key) (p instance.ListedPace) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, m := range e.models {
		if of := m.instances[k.Address]; of != nil {
			l := &of.token
			if k.Role == instance.Prefill {
				l = &of.prefill
			}
			p = p.Plus(instance.ListedPace{Samples: l.n, Seconds: l.y, Work: l.x})
		}
	}
	return p
}
