package policy

import (
	"math"
	"sync/atomic"
	"time"
	"unsafe"
)

// Load is what one rank of an instance has to do, or the whole of an instance whose ranks
// are no targets of their own. All that a leg counts is its own: whatever adds
// takes the same away again, by Begin and End. A policy that looks at every candidate
// should read no more than the first four: they share one line of the processor's caches.
type Load struct {
	InFlight atomic.Int64 // legs of this proxy
	// Waiting are the tokens that the legs of this proxy still wait for an instance to
	// compute: those of their prompts without what its cache should hold. They are gone
	// when prefill has answered, or decode has begun to.
	Waiting atomic.Int64
	// Held are the tokens of prompts that an instance holds for the legs of this proxy,
	// from the pick to the end of the leg.
	Held atomic.Int64
	// sum is InFlight, Held and beyond in one number, in parts of a leg: see Legs.
	sum atomic.Int64

	// beyond is what is known from elsewhere, as Weigh made it last.
	beyond atomic.Int64
	// Scores are what the policy token_weighted goes by, of legs as prefill and as decode;
	// 0 where another one chooses for the role. See Kind.Score.
	Scores [2]atomic.Int64
	// Others is what the other proxies say that they have there, all together; old
	// words count for less.
	Others Others
	// Capacity is how many tokens the KV cache of the engine holds, all ranks
	// together; 0 while it is not known. It outlives Engine.
	Capacity Float
	// Engine is what the engine said of itself last; nil while that is not known, or
	// too old.
	Engine atomic.Pointer[Engine]
}

// Shared is how many bytes from its beginning policies and legs look at often.
func (l *Load) Shared() uintptr { return unsafe.Offsetof(l.sum) + unsafe.Sizeof(l.sum) }

// Others is the load that the other proxies put on an instance.
type Others struct{ InFlight, Waiting, Held Float }

// Engine is what an engine says of itself in its metrics, at one moment. It does not
// change.
type Engine struct {
	At    time.Time // when it was asked
	Ranks []Rank    // by their numbers; one for an engine without data parallelism
	All   Rank      // sums, and for Usage the mean
}

// Rank is what one data-parallel rank says of itself.
type Rank struct {
	Rank             int     // its number
	Capacity         int64   // tokens that its KV cache holds, 0 where it does not say
	Usage            float64 // the part of them in use, from 0 to 1
	Running, Waiting float64 // requests
	// Starved are those of the waiting requests for which the KV cache has no room.
	Starved float64
	// Deferred are those of the waiting requests that wait for something else, mostly
	// their KV cache; 0 from engines that do not tell.
	Deferred float64
	// Fetching are requests whose KV cache is on its way to here, or has yet to be
	// asked for.
	Fetching float64
}

// Rank returns what one rank says, nil where it says nothing.
func (e *Engine) Rank(number int) *Engine {
	if e == nil {
		return nil
	}
	for i := range e.Ranks {
		if e.Ranks[i].Rank == number {
			return &Engine{At: e.At, Ranks: e.Ranks[i : i+1], All: e.Ranks[i]}
		}
	}
	return nil
}

// full is how much of the KV cache is in use when there is no room for another prompt,
// for engines that do not say so themselves.
const full = 0.95

// Full reports whether the KV cache of every rank has no room for one more prompt: requests
// wait for that, or, as old engines do not say what theirs wait for, they wait and
// hardly anything is free.
func (e *Engine) Full() bool {
	if e == nil || len(e.Ranks) == 0 {
		return false
	}
	for i := range e.Ranks {
		if r := &e.Ranks[i]; r.Starved == 0 && (r.Usage < full || r.Waiting == 0) {
			return false
		}
	}
	return true
}

// Float is a number that is read and written at once. Its zero value is 0. It has the
// precision of 24 bits, as there is no room for more.
type Float struct{ bits atomic.Uint32 }

// Load returns it.
func (f *Float) Load() float64 { return float64(math.Float32frombits(f.bits.Load())) }

// Store sets it.
func (f *Float) Store(v float64) { f.bits.Store(math.Float32bits(float32(v))) }

// How the load of an instance becomes one number, so that a policy that looks at every
// candidate reads one number of each. It is a whole number: whatever is added is taken
// away again without a rest.

const (
	// leg is one request in flight, in the unit of the number: a token of a prompt that is held.
	// Decoding beside so many tokens takes about as much longer as beside one more request, whose
	// own part in a step is small. It is chosen by the figures of docs/scheduling.md, not measured.
	leg = 8192
	// roomy is up to which part of its KV cache in use an engine is as good as idle.
	roomy = 0.5
)

// Begin counts a leg with a prompt of so many tokens.
func (l *Load) Begin(tokens int) {
	l.InFlight.Add(1)
	l.Held.Add(int64(tokens))
	l.sum.Add(leg + int64(tokens))
}

// End counts it back.
func (l *Load) End(tokens int) {
	l.InFlight.Add(-1)
	l.Held.Add(-int64(tokens))
	l.sum.Add(-leg - int64(tokens))
}

// Legs is what an instance has to do, in legs: those of this proxy as they are now, the
// tokens that they hold, and what is known from elsewhere.
func (l *Load) Legs() float64 { return float64(l.sum.Load()) * (1.0 / leg) }

// Weigh takes in again what the other proxies and the engine say: the others' legs and
// the tokens that they hold, weighed as this proxy's own; one leg for each request that
// waits in the engine for its turn, since those behind it wait for it as well, and one for
// each that waits for its KV cache to come; and when more than half of the KV cache
// is in use, up to as much again as all legs, and one more.
func (l *Load) Weigh() {
	beyond := l.Others.InFlight.Load()*leg + l.Others.Held.Load()
	if e := l.Engine.Load(); e != nil {
		waiting := max(0, e.All.Waiting-e.All.Deferred) + e.All.Fetching
		legs := float64(l.InFlight.Load()*leg+l.Held.Load()) + beyond
		beyond += waiting*leg + max(0, e.All.Usage-roomy)/(1-roomy)*(legs+leg)
	}
	is := int64(min(beyond, 1<<52)) // whatever others say
	l.sum.Add(is - l.beyond.Swap(is))
}
