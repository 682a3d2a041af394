package policy

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// The scores are those of the reference proxy: a prefill request of 1,000 bytes scores
// 1000/4 · 0.0345 + 120.0745 = 128.6995, a decode request its length.
func TestScore_MatchesReference(t *testing.T) {
	t.Parallel()
	assert.EqualValues(t, 128_699_500, scoreOf(instance.Prefill, 1000), "prefill")
	assert.EqualValues(t, 1_000_000_000, scoreOf(instance.Decode, 1000), "decode")
}

func TestTokenWeighted(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		role    instance.Role
		weights []int
		held    [][]int    // request lengths of each candidate
		others  [2]float64 // legs and tokens of other proxies on the first candidate
		want    int
	}{
		{name: "few bytes", role: instance.Decode, weights: []int{1, 1}, held: [][]int{{5000}, {4000}}, want: 1},
		{name: "few bytes in many requests", role: instance.Decode, weights: []int{1, 1}, held: [][]int{{5000}, {1000, 1000, 1000}}, want: 1},
		{name: "a prefill request costs by itself", role: instance.Prefill, weights: []int{1, 1}, held: [][]int{{5000}, {1000, 1000, 1000}}, want: 0},
		{name: "as much as 13,921 bytes", role: instance.Prefill, weights: []int{1, 1}, held: [][]int{{14_920}, {500, 500}}, want: 0},
		{name: "and not as 13,922", role: instance.Prefill, weights: []int{1, 1}, held: [][]int{{14_922}, {500, 500}}, want: 1},
		{name: "by weight", role: instance.Decode, weights: []int{100, 300}, held: [][]int{{1000}, {2900}}, want: 1},
		{name: "what others hold", role: instance.Decode, weights: []int{1, 1}, held: [][]int{{}, {3999}}, others: [2]float64{1, 1000}, want: 1},
		{name: "and what they compute", role: instance.Prefill, weights: []int{1, 1}, held: [][]int{{}, {4000}}, others: [2]float64{1, 1001}, want: 1},
	} {
		list := fleet(tc.weights...)
		for i, lengths := range tc.held {
			for _, n := range lengths {
				list[i].Load.ScoreOf(tc.role).Add(scoreOf(tc.role, n))
				list[i].Load.ScoreOf(tc.role.Other()).Add(1 << 50) // irrelevant for this role
			}
		}
		list[0].Load.Others.InFlight.Store(tc.others[0])
		list[0].Load.Others.Held.Store(tc.others[1])
		p := newTokenWeighted(seeded())
		for range 20 {
			if got, _ := p.Choose(All(list), Request{Role: tc.role}); got != tc.want {
				t.Errorf("%s: %d", tc.name, got)
			}
		}
	}
	near(t, "3:1, idle", shares(newTokenWeighted(seeded()), All(fleet(300, 100)), 10_000, 0), 2, 75, 25)
}
