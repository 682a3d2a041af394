package policy

import "math"

// session picks the candidate with the best score for the session (weighted rendezvous hashing). It keeps no
// state, so every proxy makes the same choice from the same membership. When an instance joins or leaves,
// only its sessions move. Slow start does not apply to sessions.
//
// An overloaded candidate is replaced by the next best one, which is the same for each request of the
// session.
type session struct{}

func newSession(Options) Policy { return session{} }

// Choose implements Policy.
func (session) Choose(c Candidates, r Request) (at, cached int) {
	if r.Session == "" {
		return -1, 0
	}
	of := mix(hashText(r.Session))
	r.Explanation.Each(&c, "distance", func(i int) float64 { return -math.Log(unit(mix(of^c.At(i).Hash))) / c.At(i).Weight })
	at = best(&c, of, math.Inf(1))
	if c.Requests(at) <= few {
		return at, 0
	}
	if limit := c.Limit(); Overloaded(c.Requests(at), 1, c.At(at).Weight, limit) {
		if r.Passed != nil {
			*r.Passed = c.At(at)
		}
		at = best(&c, of, limit)
	}
	return at, 0
}

// best returns the candidate with the best score among those within the limit, of which there is at least
// one. Scores must stay the same in every process and version: a change would move every session once.
func best(c *Candidates, of uint64, limit float64) int {
	best, least := -1, math.Inf(1)
	for i := range c.Len() {
		one := c.At(i)
		x := unit(mix(of ^ one.Hash))
		// -log(x) is at least 1-x, so most candidates need no logarithm.
		if best >= 0 && (1-x)/one.Weight >= least {
			continue
		}
		score := -math.Log(x) / one.Weight
		if best >= 0 && score >= least {
			continue
		}
		if !math.IsInf(limit, 1) && Overloaded(c.Requests(i), 1, one.Weight, limit) {
			continue
		}
		best, least = i, score
	}
	return max(best, 0)
}

// Distance returns the distance of a key from a choice with this hash and weight in weighted rendezvous
// hashing: the key belongs to the choice with the least distance.
func Distance(key string, hash uint64, weight float64) float64 {
	return -math.Log(unit(mix(mix(hashText(key))^hash))) / weight
}

// HashText is a hash for Distance. It is the same in every process and version.
func HashText(s string) uint64 { return mix(hashText(s)) }

// hashText is FNV-1a with 64 bits.
func hashText(s string) uint64 {
	const offset, prime = 14695981039346656037, 1099511628211
	h := uint64(offset)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * prime
	}
	return h
}

// mix makes every bit of h affect all others (the finalizer of MurmurHash3).
func mix(h uint64) uint64 {
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}
