package policy

import (
	"math"
	"time"
)

// balance weighs the cached part of a prompt against the work that waits at an instance. Costs are in tokens
// that prefill has to compute.
type balance struct {
	weight float64 // see Options.CacheWeight

	at   time.Time // last update of work
	work []float64 // tokens assigned to each target recently
	fade float64   // the factor by which work has decayed since at

	costs []cost // of the candidates of one choice; reused
}

// cost is the cost of one candidate in one choice.
type cost struct {
	number int // of the target
	cached int // tokens of the prompt in its cache
	tokens float64
}

const (
	// recent is the half-life of assigned work. No prompts wait at fast engines: without this record, the
	// cache would be the only criterion.
	recent = time.Minute
	// leaning is the cost of one token that was recently assigned to a candidate beyond its share.
	leaning = 0.02
	// slack is the maximum difference in cost between tied candidates, as a part of the prompt.
	slack = 0.1
	// DefaultCacheWeight suits the production trace of docs/scheduling.md at all loads: a cache hit saves
	// work that would delay all later requests.
	DefaultCacheWeight = 10
)

func newBalance(o *Options) balance {
	b := balance{weight: o.CacheWeight}
	if b.weight <= 0 {
		b.weight = DefaultCacheWeight
	}
	return b
}

// begin starts a choice among targets with numbers below n. With readOnly, it changes neither work nor at.
func (b *balance) begin(now time.Time, n int, readOnly bool) {
	for len(b.work) < n {
		b.work = append(b.work, 0)
	}
	b.costs, b.fade = b.costs[:0], 1
	passed := now.Sub(b.at)
	if passed <= recent/64 {
		return
	}
	b.fade = math.Exp2(-float64(passed) / float64(recent))
	if readOnly {
		return
	}
	for i := range b.work {
		b.work[i] *= b.fade
	}
	b.at, b.fade = now, 1
}

// assigned adds tokens that a target has to compute.
func (b *balance) assigned(number, tokens int) { b.work[number] += float64(tokens) }

// level clears the recent work when the candidates change: a new candidate must not get all
// prompts until it has caught up.
func (b *balance) level() { clear(b.work) }

// add adds the next candidate, whose cache is expected to hold the given number of tokens.
func (b *balance) add(number, cached int) {
	b.costs = append(b.costs, cost{number: number, cached: cached})
}

// choose returns the candidate with the lowest cost for a prompt of the given number of tokens. Ties within
// the slack are broken by the key, in the same way in every proxy. others reports whether other proxies may
// exist: their load is in another cache line of each candidate.
func (b *balance) choose(c *Candidates, tokens int, key uint64, others bool, e *Explanation) (at, cached int) {
	done := 0.0
	for i := range b.costs {
		done += b.work[b.costs[i].number] * b.fade
	}
	least := math.Inf(1)
	for i := range b.costs {
		one := &b.costs[i]
		share := c.Part(i)
		alike := share * float64(len(b.costs)) // 1 if all have the same weight
		load := c.At(i).Load
		waits := float64(load.Waiting.Load())
		if others {
			waits += load.Others.Waiting.Load()
		}
		waits /= b.weight
		beyond := (b.work[one.number]*b.fade - done*share) * leaning
		one.tokens = float64(tokens-one.cached) + (waits+beyond)/alike
		least = min(least, one.tokens)
		if e != nil {
			e.Score(c, i, "uncached", float64(tokens-one.cached))
			e.Score(c, i, "waiting", waits/alike)
			e.Score(c, i, "beyond_share", beyond/alike)
			e.Score(c, i, "cost", one.tokens)
		}
	}
	limit := least + slack*float64(tokens)
	// With equal weights, the highest random number has the highest score; no logarithm is needed.
	even := c.Even() && e == nil
	highest := 0.0
	for i := range b.costs {
		if b.costs[i].tokens > limit {
			continue
		}
		score := unit(mix(key ^ c.At(i).Hash))
		if !even {
			score = -c.Weight(i) / math.Log(score)
		}
		e.Score(c, i, "by_text", score)
		if score > highest {
			at, highest = i, score
		}
	}
	return at, b.costs[at].cached
}
