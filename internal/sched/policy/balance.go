package policy

import (
	"math"
	"time"
)

// balance weighs what an instance has in its cache against what waits for it. The unit is
// a token that prefill has to compute: what costs least is done earliest.
type balance struct {
	weight  float64     // see Options.CacheWeight
	several func() bool // see Options.Several

	at   time.Time // when work was brought up to date
	work []float64 // tokens that each target was given, of late

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
	// agreement is the same where other proxies choose too: more waiting is the price for
	// finding what they have sent there.
	agreement = 0.6
	// DefaultCacheWeight is a good one for the production trace of docs/scheduling.md, at
	// all loads: a hit saves work that everybody behind would have to wait for.
	DefaultCacheWeight = 5
)

func newBalance(o *Options) balance {
	b := balance{weight: o.CacheWeight, several: o.Several}
	if b.weight <= 0 {
		b.weight = DefaultCacheWeight
	}
	if b.several == nil {
		b.several = func() bool { return false }
	}
	return b
}

// begin starts a choice among targets with numbers below n.
func (b *balance) begin(now time.Time, n int) {
	for len(b.work) < n {
		b.work = append(b.work, 0)
	}
	if passed := now.Sub(b.at); passed > recent/64 {
		keep := math.Exp2(-float64(passed) / float64(recent))
		for i := range b.work {
			b.work[i] *= keep
		}
		b.at = now
	}
	b.costs = b.costs[:0]
}

// level forgets who was given more than its share, as it does when the candidates change:
// a new one must not get all that comes until it has caught up.
func (b *balance) level() { clear(b.work) }

// add takes the next candidate in, whose cache should hold so many tokens.
func (b *balance) add(number, cached int) {
	b.costs = append(b.costs, cost{number: number, cached: cached})
}

// choose gives the candidate that costs least for a prompt of so many tokens. Among those
// that cost about as much the key decides, the same way in every proxy.
func (b *balance) choose(c *Candidates, tokens int, key uint64) (at, cached int) {
	done := 0.0
	for i := range b.costs {
		done += b.work[b.costs[i].number]
	}
	least := math.Inf(1)
	for i := range b.costs {
		one := &b.costs[i]
		share := c.Part(i)
		alike := share * float64(len(b.costs)) // 1 where all have the same weight
		load := c.At(i).Load
		waits := (float64(load.Waiting.Load()) + load.Others.Waiting.Load()) / b.weight
		beyond := (b.work[one.number] - done*share) * leaning
		one.tokens = float64(tokens-one.cached) + (waits+beyond)/alike
		least = min(least, one.tokens)
	}
	limit := least + slack*float64(tokens)
	if b.several() {
		limit = least + agreement*float64(tokens)
	}
	highest := 0.0
	for i := range b.costs {
		one := &b.costs[i]
		if one.tokens > limit {
			continue
		}
		score := -c.Weight(i) / math.Log(unit(mix(key^c.At(i).Hash)))
		if score > highest {
			at, highest = i, score
		}
	}
	b.work[b.costs[at].number] += float64(tokens - b.costs[at].cached)
	return at, b.costs[at].cached
}
