package policy

import (
	"math"
	"sync/atomic"
	"time"
)

// Load is the load of one rank of an instance, or of a whole instance whose ranks are not separate targets.
// Begin adds the load of a leg and End removes it. A policy that reads every candidate should read only the
// first four fields, which share one cache line.
type Load struct {
	InFlight atomic.Int64 // legs of this proxy
	// Waiting is the number of prompt tokens of this proxy's legs that the instance still has to compute,
	// without those expected in its cache. A leg counts until prefill has answered or decode has begun to
	// answer.
	Waiting atomic.Int64
	// Held is the number of prompt tokens that the instance holds for the legs of this proxy,
	// from the pick to the end of the leg.
	Held atomic.Int64
	// sum combines InFlight, Held and beyond, in units of one held token; see Legs.
	sum atomic.Int64

	// beyond is the load from other proxies and the engine's report, as of the last Weigh.
	beyond atomic.Int64
	// Scores are the sums for the policy token_weighted, of prefill and of decode legs; 0 if another policy
	// chooses for the role. See Kind.Score.
	Scores [2]atomic.Int64
	// Others is the load that the other proxies report; old reports count less.
	Others Others
	// Capacity is the number of tokens that the KV cache of the engine holds, over all ranks; 0
	// if unknown. It outlives Engine.
	Capacity Float
	// Engine is the last report of the engine; nil if there is none, or it is too old.
	Engine atomic.Pointer[Engine]
}

// Others is the load that the other proxies put on an instance.
type Others struct{ InFlight, Waiting, Held Float }

// Engine is a report of an engine: its metrics at one moment. It is immutable.
type Engine struct {
	At        time.Time // time of the reading
	StartedAt time.Time // of its process, by its clock; zero if unknown
	Ranks     []Rank    // sorted by number; one for an engine without data parallelism
	All       Rank      // sums; the mean for Usage
}

// Rank is the report of one data-parallel rank.
type Rank struct {
	Rank             int     // its number
	Capacity         int64   // of its KV cache in tokens, 0 if unknown
	Usage            float64 // share of the capacity in use, from 0 to 1
	Running, Waiting float64 // requests
	// Starved is the number of waiting requests for which the KV cache has no space.
	Starved float64
	// Deferred is the number of waiting requests that wait for something other than capacity, mostly their KV
	// cache; 0 from engines that do not report it.
	Deferred float64
	// Fetching is the number of requests whose KV cache is being fetched or is still to be
	// fetched.
	Fetching float64
	// Fetched is the part of Deferred whose KV cache has been fetched; 0 from engines that do not
	// report it.
	Fetched float64
}

// Rank returns the report of one rank, nil if there is none.
func (e *Engine) Rank(number int) *Engine {
	if e == nil {
		return nil
	}
	for i := range e.Ranks {
		if e.Ranks[i].Rank == number {
			return &Engine{At: e.At, StartedAt: e.StartedAt, Ranks: e.Ranks[i : i+1], All: e.Ranks[i]}
		}
	}
	return nil
}

// full is the share of the KV cache in use from which there is no space for another prompt, for engines that
// do not report Starved.
const full = 0.95

// Full reports whether the KV cache of every rank has no space for another prompt: requests wait for space.
// From old engines, which do not report the reason: requests wait and hardly any space is free.
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

// Queued reports whether requests wait in the engine for capacity. vLLM counts requests that need a KV
// transfer and have no slot yet both as waiting for capacity and as waiting for the transfer. Therefore
// Fetching does not matter here.
func (e *Engine) Queued() bool { return e.All.Waiting > e.All.Deferred }

// Queue returns the number of requests that wait for a slot among the running ones. Most of them already have
// their KV cache: when a slot is free, vLLM starts to fetch as many KV caches as possible.
func (e *Engine) Queue() float64 { return e.All.Waiting - e.All.Deferred + e.All.Fetched }

// Float is an atomic float32: 24 bits of precision, so that Load stays small. Its zero value is 0.
type Float struct{ bits atomic.Uint32 }

// Load returns the value.
func (f *Float) Load() float64 { return float64(math.Float32frombits(f.bits.Load())) }

// Store sets the value.
func (f *Float) Store(v float64) { f.bits.Store(math.Float32bits(float32(v))) }

// The load of an instance is one number, so that a policy reads only one number of each candidate. It is an
// integer, so that End subtracts exactly what Begin added.

const (
	// leg is the load of one request in flight, in held prompt tokens. This number of held tokens slows
	// decode down about as much as one more request, which is a small part of a step. It is derived from the
	// figures of docs/scheduling.md, not measured.
	leg = 8192
	// idleUsage is the share of the KV cache in use up to which an engine counts as idle.
	idleUsage = 0.5
)

// Begin adds a leg whose prompt has the given number of tokens.
func (l *Load) Begin(tokens int) {
	l.InFlight.Add(1)
	l.Held.Add(int64(tokens))
	l.sum.Add(leg + int64(tokens))
}

// End removes a leg that Begin added with the same number of tokens.
func (l *Load) End(tokens int) {
	l.InFlight.Add(-1)
	l.Held.Add(-int64(tokens))
	l.sum.Add(-leg - int64(tokens))
}

// Legs returns the load of an instance in legs: those of this proxy, the tokens that they hold, and the load
// known from other proxies and the engine.
func (l *Load) Legs() float64 { return float64(l.sum.Load()) * (1.0 / leg) }

// Weigh updates the load known from other proxies and the engine. The others' legs and held tokens count like
// this proxy's. Each request queued in the engine counts as one leg, since later ones wait for it, and so
// does each that waits for its KV cache. If more than half of the KV cache is in use, up to as much again as
// all legs, plus one, is added.
func (l *Load) Weigh() {
	beyond := l.Others.InFlight.Load()*leg + l.Others.Held.Load()
	if e := l.Engine.Load(); e != nil {
		waiting := max(0, e.All.Waiting-e.All.Deferred) + e.All.Fetching
		legs := float64(l.InFlight.Load()*leg+l.Held.Load()) + beyond
		beyond += waiting*leg + max(0, e.All.Usage-idleUsage)/(1-idleUsage)*(legs+leg)
	}
	is := int64(min(beyond, 1<<52)) // bounded, since others report it
	l.sum.Add(is - l.beyond.Swap(is))
}
