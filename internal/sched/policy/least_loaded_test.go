package policy

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

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
			hold(c.At(i), n)
		}
		p := newLeastLoaded(seeded())
		for range 20 {
			if got, _ := p.Choose(c, Request{}); got != tc.want {
				t.Errorf("%s: %d", tc.name, got)
			}
		}
	}
	near(t, "3:1, 64 held", shares(newLeastLoaded(seeded()), All(fleet(300, 100)), 10_000, 64), 2, 75, 25)
	near(t, "3:1, all idle", shares(newLeastLoaded(seeded()), All(fleet(300, 100)), 10_000, 0), 2, 75, 25)
	near(t, "even, all idle", shares(newLeastLoaded(seeded()), All(fleet(1, 1, 1, 1)), 10_000, 0), 2, 25, 25, 25, 25)
	many := make([]float64, 100)
	for i := range many {
		many[i] = 1
	}
	near(t, "many, all idle", shares(newLeastLoaded(seeded()), All(fleet(ones(100)...)), 50_000, 0), 0.2, many...)
	near(t, "many, all the same", shares(newLeastLoaded(seeded()), All(busy(ones(100)...)), 50_000, 0), 0.2, many...)
	near(t, "many, nearly all busy", shares(newLeastLoaded(seeded()), All(fleet(ones(100)...)), 50_000, 97), 0.2, many...)
	near(t, "3:1, all the same", shares(newLeastLoaded(seeded()), All(busy(3, 1)), 10_000, 0), 2, 75, 25)
	near(t, "even, 3 held", shares(newLeastLoaded(seeded()), All(fleet(1, 1, 1, 1)), 10_000, 3), 2, 25, 25, 25, 25)
}

// busy returns candidates whose load is proportional to their weight.
func busy(weights ...int) []Candidate {
	list := fleet(weights...)
	for i, w := range weights {
		hold(&list[i], w)
	}
	return list
}

// If load changes during a choice, no request goes to a candidate with more load than the tied ones.
func TestLeastWhileScoresChange(t *testing.T) {
	t.Parallel()
	list := fleet(1, 1, 1, 1)
	hold(&list[3], 9)
	c, read := All(list), 0
	at := least(&c, 0.9, func(i int) float64 {
		if read++; read == 5 { // between the two reads of the scores
			hold(&list[2], 1)
		}
		return c.Load(i)
	})
	assert.Equal(t, 1, at, "chose")
}
