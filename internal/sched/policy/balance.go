package policy

import (
	"math"
	"time"
)

// balance weighs what an instance has in its cache against what waits for it. The unit is
// a token that prefill has to compute: what costs least is done earliest.
type balance struct {
	weight float64 // see Options.CacheWeight

	at   time.Time // when work was brought up to date
	work []float64 // tokens that each target was given, of late
	fade float64   // what is left of it by now

	costs []cost // of the candidates of one choice
}

// cost is what is known of one candidate for one choice.
type cost struct {
	number int // of the target
	cached int // tokens of the prompt in its cache
	tokens float64
}

const (
	// recent is how long work counts that is done: half of it after so long. Nothing waits
	// where engines are quick, and without a memory the cache alone would decide.
	recent = time.Minute
	// leaning is how many tokens of a prompt one token counts that a candidate was given
	// beyond its share of late.
	leaning = 0.02
	// slack is the part of a prompt by which costs may differ and be alike.
	slack = 0.1
	// DefaultCacheWeight is a good one for the production trace of docs/scheduling.md, at
	// all loads: a hit saves work that everybody behind would have to wait for.
	DefaultCacheWeight = 10
)

func newBalance(o *Options) balance {
	b := balance{weight: o.CacheWeight}
	if b.weight <= 0 {
		b.weight = DefaultCacheWeight
	}
	return b
}

// begin starts a choice among targets with numbers below n. One that only looks leaves
// work as it is, in its time too.
func (b *balance) begin(now time.Time, n int, only bool) {
	for len(b.work) < n {
		b.work = append(b.work, 0)
	}
	b.costs, b.fade = b.costs[:0], 1
	passed := now.Sub(b.at)
	if passed <= recent/64 {
		return
	}
	b.fade = math.Exp2(-float64(passed) / float64(recent))
	if only {
		return
	}
	for i := range b.work {
		b.work[i] *= b.fade
	}
	b.at, b.fade = now, 1
}

// gave notes that a target was given so many tokens to compute.
func (b *balance) gave(number, tokens int) { b.work[number] += float64(tokens) }

// level forgets who was given more than its share, as it does when the candidates change:
// a new one must not get all that comes until it has caught up.
func (b *balance) level() { clear(b.work) }

// add takes the next candidate in, whose cache should hold so many tokens.
func (b *balance) add(number, cached int) {
	b.costs = append(b.costs, cost{number: number, cached: cached})
}

// choose returns the candidate that costs least for a prompt of so many tokens. Among those
// that cost about as much the key decides, the same way in every proxy. others tells that
// there may be other proxies, whose load is one more line of the processor's caches for
// each candidate.
func (b *balance) choose(c *Candidates, tokens int, key uint64, others bool, e *Explanation) (at, cached int) {
	done := 0.0
	for i := range b.costs {
		done += b.work[b.costs[i].number] * b.fade
	}
	least := math.Inf(1)
	for i := range b.costs {
		one := &b.costs[i]
		share := c.Part(i)
		alike := share * float64(len(b.costs)) // 1 where all have the same weight
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
	// Of the same weight the one with the highest number wins as with the highest score,
	// which takes a logarithm.
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
