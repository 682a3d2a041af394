package policy

import "testing"

func TestLeastLoaded(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name             string
		weights, holding []int
		want             int
	}{
		{"the one that holds least", []int{1, 1, 1}, []int{2, 1, 2}, 1},
		{"by weight", []int{100, 300}, []int{2, 5}, 1},
		{"by weight, the other way", []int{100, 300}, []int{1, 4}, 0},
		{"an idle one, however light", []int{1000, 1}, []int{1, 0}, 1},
	} {
		c := All(fleet(tc.weights...))
		for i, n := range tc.holding {
			c.At(i).Load.InFlight.Store(int64(n))
		}
		p := newLeastLoaded(seeded())
		for range 20 {
			if got := p.Choose(c, Request{}); got != tc.want {
				t.Errorf("%s: %d", tc.name, got)
			}
		}
	}
	near(t, "3:1, 64 held", shares(newLeastLoaded(seeded()), All(fleet(300, 100)), 10_000, 64), 2, 75, 25)
	near(t, "3:1, all idle", shares(newLeastLoaded(seeded()), All(fleet(300, 100)), 10_000, 0), 2, 75, 25)
	near(t, "even, all idle", shares(newLeastLoaded(seeded()), All(fleet(1, 1, 1, 1)), 10_000, 0), 2, 25, 25, 25, 25)
	near(t, "even, 3 held", shares(newLeastLoaded(seeded()), All(fleet(1, 1, 1, 1)), 10_000, 3), 2, 25, 25, 25, 25)
}

// Those that hold least may get something between two looks at them.
func TestLeastLoadedWhileLoadsGrow(t *testing.T) {
	t.Parallel()
	c := All(fleet(1, 1, 1))
	p := newLeastLoaded(Options{Rand: func() float64 { // it is asked for between the looks
		for i := range c.Len() {
			c.At(i).Load.InFlight.Add(1)
		}
		return 0.5
	}})
	if i := p.Choose(c, Request{}); i < 0 || i >= c.Len() {
		t.Errorf("chose %d", i)
	}
}
