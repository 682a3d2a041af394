package policy

import (
	"math"
	"sync/atomic"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// tokenWeighted picks the candidate with the lowest score in proportion to its weight. Ties are
// broken at random, in proportion to the weights. The score is that of vllm-ascend's load-balance
// proxy, computed from the body lengths of the candidate's requests in place of their tokens.
type tokenWeighted struct{ rand func() float64 }

func newTokenWeighted(o Options) Policy { return tokenWeighted{o.Rand} }

// The scores of the reference proxy, in millionths, so that what was added is subtracted exactly: a prefill leg scores length/4 · 0.0345 + 120.0745, a decode leg its
// length. Scores of two roles are never compared.
const (
	prefillByte = 8_625
	prefillLeg  = 120_074_500
	decodeByte  = 1_000_000
	// bytesOfToken is the length of a token that the reference proxy assumes. Other proxies
	// publish tokens, not bytes.
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

// ScoreOf returns the sum of scores of this proxy's legs of a role.
func (l *Load) ScoreOf(role instance.Role) *atomic.Int64 {
	return &l.Scores[role.Index()]
}

// Choose implements Policy.
func (p tokenWeighted) Choose(c Candidates, r Request) (at, cached int) {
	at, least, tied := 0, math.Inf(1), 0.0 // tied: sum of the weights with the lowest score so far
	for i := range c.Len() {
		weight := c.Weight(i)
		score := c.At(i).Load.score(r.Role) / weight
		r.Explanation.Score(&c, i, "score", score*instance.DefaultWeight*1e-6)
		if score > least {
			continue
		}
		if score < least {
			at, least, tied = i, score, weight
			continue
		}
		// Each further one replaces the chosen one with this probability, so that in the end
		// each has been chosen in proportion to its weight.
		if tied += weight; r.chance(p.rand)*tied < weight {
			at = i
		}
	}
	return at, 0
}
