package policy

import (
	"sync/atomic"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// tokenWeighted picks the candidate with the lowest score relative to its weight. Ties are broken at random,
// in proportion to the weights. The score is that of vllm-ascend's load-balance proxy, computed from the body
// lengths of the candidate's requests instead of their tokens.
type tokenWeighted struct{ rand func() float64 }

func newTokenWeighted(o Options) Policy { return tokenWeighted{o.Rand} }

// Scores of the reference proxy, in millionths, so that subtraction is exact: a prefill leg scores length/4 ·
// 0.0345 + 120.0745, a decode leg its length. Scores of two roles are never compared.
const (
	prefillByte = 8_625
	prefillLeg  = 120_074_500
	decodeByte  = 1_000_000
	// bytesOfToken is the length of a token that the reference proxy assumes, for the load of other proxies,
	// which is in tokens.
	bytesOfToken = 4
)

// scoreOf returns the score of a leg whose body has the given number of bytes.
func scoreOf(role instance.Role, length int) int64 {
	if role == instance.Prefill {
		return prefillLeg + prefillByte*int64(length)
	}
	return decodeByte * int64(length)
}

// score returns the score of an instance, including the legs of other proxies.
func (l *Load) score(role instance.Role) float64 {
	legs, bytes := l.Others.InFlight.Load(), l.Others.Held.Load()*bytesOfToken
	if role == instance.Prefill {
		return float64(l.Scores[0].Load()) + prefillLeg*legs + prefillByte*bytes
	}
	return float64(l.Scores[1].Load()) + decodeByte*bytes
}

// ScoreOf returns the sum of the scores of this proxy's legs in a role.
func (l *Load) ScoreOf(role instance.Role) *atomic.Int64 {
	return &l.Scores[role.Index()]
}

// Choose implements Policy.
func (p tokenWeighted) Choose(c Candidates, r Request) (at, cached int) {
	score := func(i int) float64 { return c.At(i).Load.score(r.Role) / c.Weight(i) }
	r.Explanation.Each(&c, "score", func(i int) float64 { return score(i) * instance.DefaultWeight * 1e-6 })
	return least(&c, r.chance(p.rand), score), 0
}
