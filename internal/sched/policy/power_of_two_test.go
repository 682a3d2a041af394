package policy

import "testing"

func TestPowerOfTwo(t *testing.T) {
	t.Parallel()
	// Of two candidates, both are always drawn.
	for _, weights := range [][]int{{1, 1}, {300, 100}, {1, 1000}} {
		for idle := range 2 {
			c := All(fleet(weights...))
			hold(c.At(1-idle), 3)
			p := newPowerOfTwo(seeded())
			for range 200 {
				if got, _ := p.Choose(c, Request{}); got != idle {
					t.Fatalf("%v: chose %d, which is busy", weights, got)
				}
			}
		}
	}
	near(t, "3:1, 64 held", shares(newPowerOfTwo(seeded()), All(fleet(300, 100)), 10_000, 64), 2, 75, 25)
	near(t, "3:3:1:1, 64 held", shares(newPowerOfTwo(seeded()), All(fleet(300, 300, 100, 100)), 10_000, 64), 2, 37.5, 37.5, 12.5, 12.5)
	near(t, "even", shares(newPowerOfTwo(seeded()), All(fleet(1, 1, 1, 1)), 10_000, 64), 2, 25, 25, 25, 25)
	near(t, "one", shares(newPowerOfTwo(seeded()), All(fleet(5)), 10, 64), 0, 100)
}

// The first candidate is drawn by turn. The second is a different
// one, drawn with a probability proportional to its weight.
func TestPowerOfTwoDrawsTwo(t *testing.T) {
	t.Parallel()
	for _, weights := range [][]int{{2, 2, 2}, {1, 2, 5}} {
		c := All(fleet(weights...))
		for first := range weights {
			hold(c.At(first), 1) // the other drawn candidate wins
			start := uint64(0)
			for inTurn(c, start) != first {
				start++
			}
			got := make([]float64, len(weights))
			const points = 1000
			for i := range points {
				p := newPowerOfTwo(Options{Start: start, Rand: func() float64 { return (float64(i) + 0.5) / points }})
				i, _ := p.Choose(c, Request{})
				got[i] += 100. / points
			}
			want := make([]float64, len(weights))
			for i := range weights {
				if i != first {
					want[i] = 100 * c.Part(i) / (1 - c.Part(first))
				}
			}
			near(t, "beside the first", got, 0.2, want...)
			hold(c.At(first), -1)
		}
	}
}

// inTurn returns the candidate whose turn it is.
func inTurn(c Candidates, n uint64) int {
	at, _ := newRoundRobin(Options{Start: n}).Choose(c, Request{})
	return at
}
