package policy

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRoundRobinTakesTurns(t *testing.T) {
	t.Parallel()
	p, c := newRoundRobin(Options{Start: 7}), All(fleet(1, 1, 1))
	for turn := range 9 {
		if i, _ := p.Choose(c, Request{}); i != (7+turn)%3 {
			t.Fatalf("turn %d is %d's", turn, i)
		}
	}
	// If one leaves, the others get equal shares.
	near(t, "two of three", shares(p, some(c.list, false, 0, 2), 1000, 0), 1e-6, 50, 0, 50)
}

func TestRoundRobinByWeight(t *testing.T) {
	t.Parallel()
	for _, start := range []uint64{0, 1 << 40, 0xdead_beef_0bad_cafe} {
		p := newRoundRobin(Options{Start: start})
		near(t, "3:1", shares(p, All(fleet(300, 100)), 10_000, 0), 0.1, 75, 25)
		near(t, "5:2:1", shares(p, All(fleet(50, 20, 10)), 8_000, 0), 0.1, 62.5, 25, 12.5)
		// The light one is not starved, and never chosen twice in a row.
		since := 1 // it may be the first
		for range 1000 {
			if i, _ := p.Choose(All(fleet(3, 1)), Request{}); i == 0 {
				since++
				continue
			}
			require.True(t, since >= 1 && since <= 5, "%d turns of the heavy one in a row", since)
			since = 0
		}
	}
}

// Requests with different candidates arrive in a fixed order, as when prefill
// instances of two dialects take turns: no candidate is preferred.
func TestRoundRobin_MixedCandidates(t *testing.T) {
	t.Parallel()
	list := fleet(1, 1, 1, 1)
	p, got := newRoundRobin(Options{}), make([]float64, 4)
	sets := []Candidates{some(list, true, 0, 1), some(list, true, 2, 3)}
	for n := range 4000 {
		c := sets[n%2]
		i, _ := p.Choose(c, Request{})
		got[c.Index(i)] += 100. / 4000
	}
	near(t, "two dialects in turn", got, 0.5, 25, 25, 25, 25)
	// One of two fails every request, and each request is retried at the other one.
	clear(got)
	for range 2000 {
		c := All(list[:2])
		if i, _ := p.Choose(c, Request{}); i == 0 {
			again := some(list[:2], true, 1)
			p.Choose(again, Request{})
			got[0] += 100. / 2000
		}
	}
	near(t, "first tries at the one that fails", got, 0.5, 50)
}
