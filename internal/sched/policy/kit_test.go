package policy

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// fleet returns candidates with these weights.
func fleet(weights ...int) []Candidate {
	list := make([]Candidate, len(weights))
	for i, w := range weights {
		in := &instance.Instance{
			Key:    instance.Key{Role: instance.Decode, Address: fmt.Sprintf("10.0.0.%03d:8000", i)},
			Record: instance.Record{Weight: &w},
		}
		list[i] = NewCandidate(in, 0, &Load{})
	}
	return list
}

// some returns the candidates of a list at these indexes.
func some(list []Candidate, narrowed bool, at ...int) Candidates {
	c := Some(list, make([]Choice, 0, len(at)), narrowed)
	for _, i := range at {
		c.Add(i, list[i].Weight)
	}
	return c
}

// seeded returns options with the same random numbers in every run.
func seeded() Options { return Options{Rand: rand.New(rand.NewPCG(3, 4)).Float64} }

// held has the most recently chosen candidates, each with a leg in flight.
type held struct {
	most int
	legs []*Candidate
}

// take adds a candidate, and ends the oldest leg if there are too many.
func (h *held) take(c *Candidate) {
	c.Load.Begin(0)
	if h.legs = append(h.legs, c); len(h.legs) > h.most {
		h.legs[0].Load.End(0)
		h.legs = h.legs[1:]
	}
}

// shares makes n choices with a policy, holds at most most of them at once,
// and returns the share of each candidate of the list, in percent.
func shares(p Policy, c Candidates, n, most int) []float64 {
	got := make([]float64, len(c.list))
	h := held{most: most}
	for range n {
		i, _ := p.Choose(c, Request{})
		h.take(c.At(i))
		got[c.Index(i)] += 100 / float64(n)
	}
	return got
}

// near fails unless each share differs by at most within from the wanted one.
func near(t *testing.T, what string, got []float64, within float64, want ...float64) {
	t.Helper()
	for i := range want {
		if got[i] < want[i]-within || got[i] > want[i]+within {
			t.Errorf("%s: shares %.2f, want %v, %g to either side", what, got, want, within)
			return
		}
	}
}

func TestShareIsByWeight(t *testing.T) {
	t.Parallel()
	for _, weights := range [][]int{{5}, {7, 7, 7, 7}, {1, 300, 20}} {
		c := All(fleet(weights...))
		total := 0
		for _, w := range weights {
			total += w
		}
		begins := 0
		for want, w := range weights {
			for _, at := range []float64{0.001, 0.5, 0.999} {
				point := (float64(begins) + at*float64(w)) / float64(total)
				i, from := c.Share(point)
				assert.True(t, i == want && from <= point && from+c.Part(i) >= point,
					"%v: at %g is %d from %g, want %d", weights, point, i, from, want)
			}
			begins += w
		}
		if i, _ := c.Share(1); i != len(weights)-1 {
			t.Errorf("%v: the end is %d", weights, i)
		}
	}
}

// The properties of a list equal those of all its candidates, added one by one.
func TestCandidates_SomeSameAsAll(t *testing.T) {
	t.Parallel()
	for _, weights := range [][]int{{2}, {4, 4, 4}, {4, 4, 5}} {
		list := fleet(weights...)
		whole, parts := All(list), Some(list, make([]Choice, 1), false)
		for i := range list {
			parts.Add(i, list[i].Weight)
		}
		assert.True(t, whole.Len() == parts.Len() && whole.Even() == parts.Even() && whole.total == parts.total,
			"%+v and %+v", whole, parts)
		for i := range list {
			if whole.At(i) != parts.At(i) || whole.Index(i) != parts.Index(i) || whole.Weight(i) != parts.Weight(i) {
				t.Errorf("%v: %d differs", weights, i)
			}
		}
	}
}

// hold begins or ends the given number of legs.
func hold(c *Candidate, legs int) {
	for range legs {
		c.Load.Begin(0)
	}
	for range -legs {
		c.Load.End(0)
	}
}
