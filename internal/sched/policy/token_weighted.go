package policy

import (
	"math"
	"sync/atomic"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// tokenWeighted takes the candidate with the least score in proportion to its weight,
// among several of those one by chance, in proportion to the weights. The score is that
// of vllm-ascend's load-balance proxy: it follows from the bytes of the bodies of the
// requests that the candidate has, in place of their tokens.
type tokenWeighted struct{ rand func() float64 }

func newTokenWeighted(o Options) Policy { return tokenWeighted{o.Rand} }

// The scores of the reference proxy, in millionths, so that what is added can be taken
// away without a rest: a prefill leg scores length/4 · 0.0345 + 120.0745, a decode leg its
// length. Scores of two roles are never compared.
const (
	prefillByte = 8_625
	prefillLeg  = 120_074_500
	decodeByte  = 1_000_000
	// bytesOfToken is what the reference proxy takes a token for. Other proxies tell of
	// tokens, not of bytes.
	bytesOfToken = 4
)

// scoreOf is the score of a leg with a body of so many bytes.
func scoreOf(role instance.Role, length int) int64 {
	if role == instance.Prefill {
		return prefillLeg + prefillByte*int64(length)
	}
	return decodeByte * int64(length)
}

// score is that of an instance, by all proxies.
func (l *Load) score(role instance.Role) float64 {
	legs, bytes := l.Others.InFlight.Load(), l.Others.Held.Load()*bytesOfToken
	if role == instance.Prefill {
		return float64(l.Scores[0].Load()) + prefillLeg*legs + prefillByte*bytes
	}
	return float64(l.Scores[1].Load()) + decodeByte*bytes
}

// ScoreOf is the score that the own legs of a role have.
func (l *Load) ScoreOf(role instance.Role) *atomic.Int64 {
	if role == instance.Prefill {
		return &l.Scores[0]
	}
	return &l.Scores[1]
}

// Choose implements Policy.
func (p tokenWeighted) Choose(c Candidates, r Request) (at, cached int) {
	at, least, tied := 0, math.Inf(1), 0.0 // tied: the weights of all that have least, so far
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
		// The next of several takes the place of the one before with this chance: in
		// the end each has it by its weight.
		if tied += weight; r.chance(p.rand)*tied < weight {
			at = i
		}
	}
	return at, 0
}
