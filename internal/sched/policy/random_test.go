package policy

import "testing"

func TestRandom(t *testing.T) {
	t.Parallel()
	p := newRandom(seeded())
	near(t, "3:1", shares(p, All(fleet(300, 100)), 10_000, 0), 2, 75, 25)
	near(t, "even", shares(p, All(fleet(9, 9, 9, 9)), 10_000, 0), 2, 25, 25, 25, 25)
	near(t, "some", shares(p, some(fleet(10, 10, 20), true, 0, 2), 10_000, 0), 2, 33.3, 0, 66.7)
	ends := newRandom(Options{Rand: func() float64 { return 0.9999999999999999 }})
	if i, _ := ends.Choose(All(fleet(1, 2, 3)), Request{}); i != 2 {
		t.Errorf("the end of the range is %d's", i)
	}
}
