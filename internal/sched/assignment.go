package sched

import (
	"strconv"
	"sync/atomic"
	"time"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
)

// Target is one data-parallel rank of an instance.
type Target struct {
	instance.Key
	Rank int
}

// Request describes one pick.
type Request struct {
	Role  instance.Role
	Model string
	// Labels are those that the instance must have; nil: any. See package modelroute.
	Labels instance.Selector
	// Partner is the other half of the pair, nil if it is not chosen yet or
	// there is none; its dialect must be the same.
	Partner *Assignment
	// Alone reports whether a prefill instance needs no decode instance to go with it.
	Alone bool
	// Session is the session id of the client, "" for none; see Options.NoBinding.
	Session string
	// Tried are the instances that this request must not get again. Its elements do not
	// change any more.
	Tried []instance.Key
	// TriedRanks are ranks that it must not get again, of instances with several. It gets
	// their other ranks only if there is no other instance for it.
	TriedRanks []Target
	// Rank is the data-parallel rank that it must get, if Ranked. Of an instance that has
	// no such rank it may get any.
	Ranked bool
	Rank   int
	// Prompt is the prompt or the messages, as they are in the body; see request.Reading. It is
	// not kept.
	Prompt []byte
	// Head is what the model reads before the prompt, as it is in the body: tools,
	// instructions, the salt of the cache. It is not kept.
	Head [][]byte
	// Media reports whether the prompt is more than text: its length says little about its tokens.
	Media bool
	// TokensTell reports whether the tokens of the prompt determine its KV cache, and a
	// prefill instance can be queried for them.
	TokensTell bool
	// Length of the body in bytes.
	Length int
	// Measure asks for Queued and Running of the assignment.
	Measure bool
	// Tentative reports whether the leg may not be sent to the instance that is picked; if it
	// is, Assignment.Confirm must be called. Until then policies and tallies know nothing
	// of the pick; it counts as in flight at once.
	Tentative bool
}

// Assignment is one pick. Scheduler.Pick and Scheduler.Take create it; Done must be called when
// the leg has ended. The load of the instance follows these calls:
//
//	Pick, Take                          in flight, KV cache held
//	  │   Confirm                       a Tentative pick is sent to the instance; policies learn it
//	  │   Await(leg)                    the leg may be cancelled if the instance left or hangs
//	  ▼
//	prompt waiting
//	  │   Prefilled(tokens, cached)     the prompt no longer waits; lengths and cache hits are learned
//	  ▼
//	prompt computed
//	  │   Answered                      first content; legs that began earlier count as overtaken
//	  │   EndAwait                      the answer is committed, the leg can no longer be cancelled
//	  │   Unfetched(until)              the leg failed and its KV cache stays pinned until then
//	  ▼
//	Done                                out of the load
//
// Only the order of Unfetched before Done matters; every call but Pick and Done may be absent, and
// calls that do not apply any more have no effect. NoteProgress and Full may be called at any time.
type Assignment struct {
	Instance *instance.Instance
	// Rank is the data-parallel rank of the instance.
	Rank int
	// PairKey is what its partner must match; see Options. Connector is the resolved dialect.
	connector.PairKey
	// Policy is the name of the policy that chose.
	Policy string
	// Revision is that of the snapshot that the choice was made from.
	Revision int64
	// Tokens is how many tokens the prompt has, by an estimate, Cached how many of them
	// the policy expects in the cache of the instance; 0 where it does not know.
	Tokens, Cached int
	// Queued are the tokens that waited there when it was picked, by Load.Waiting and what
	// other proxies say, Running the legs that were in flight; see Request.Measure.
	Queued, Running int64
	// Lesson is the request of the policy for the tokens of the prompt in prefill's answer.
	Lesson policy.Lesson
	// Elsewhere is why another instance would have been preferred; "" if none would. See
	// Tally.Elsewhere.
	Elsewhere string

	passedOver *policy.Candidate // the candidate of its session that was passed over, while it is being picked
	counter    *counter
	counts     [5]*atomic.Uint64 // the tallies that the pick is counted in, once it is confirmed; nil: none
	tentative  policy.Tentative
	assigned   policy.Assigned
	pins       *pins
	load       *policy.Load // of the rank
	bytes      int          // the length that Tokens was estimated from
	ratio      *ratio       // nil: it learns nothing from the prompt
	waiting    atomic.Int64 // what it has added to Load.Waiting
	score      int64        // what it has added to Load.Scores
	wanted     wanted       // what another instance must have to take the leg over
	wait       wait         // guarded by counter.waiting.mu
	done       atomic.Bool
}

// Address is the address of the instance, with # and the number of the rank if it has
// several ranks.
func (a *Assignment) Address() string { return AddressOf(a.Instance, a.Rank) }

// AddressOf is Assignment.Address of a rank of an instance.
func AddressOf(in *instance.Instance, rank int) string {
	if in.Ranks() == 1 {
		return in.Address
	}
	return in.Address + "#" + strconv.Itoa(rank)
}

// Confirm reports whether the leg of a tentative pick is sent to the picked instance.
func (a *Assignment) Confirm() {
	a.tentative.Confirm()
	for i, n := range a.counts {
		if n != nil {
			n.Add(1)
		}
		a.counts[i] = nil
	}
}

// Full reports whether the instance should not compute a prompt which another instance can
// compute: by the last report of its engine requests are queued there or its KV cache is
// full, or the prompts of all legs there fill it. Requests that wait for a KV transfer are not
// queued; engines that do not report them separately are full more often.
func (a *Assignment) Full() bool {
	if room := a.load.Capacity.Load(); room > 0 && float64(a.load.Held.Load())+a.load.Others.Held.Load() > room {
		return true
	}
	report := a.load.Engine.Load()
	return report != nil && (report.Full() || report.All.Waiting > max(report.All.Deferred, report.All.Fetching))
}

// NoteProgress records that bytes of an answer which the engine's core has computed have arrived.
func (a *Assignment) NoteProgress() { a.counter.progress.Add(1) }

// ShouldMove reports whether another instance should continue a stream of the instance, which was drained
// with a time for that.
func (a *Assignment) ShouldMove() bool {
	at := a.counter.hits.moves[a.Instance.Role.Index()].Load()
	return at != 0 && time.Now().UnixNano() >= at
}

// Prefilled records that the instance has computed the prompt, which therefore no longer waits
// there. tokens is the length of the prompt, and cached the number of them that were in the prefix
// cache, by the answer of a prefill instance; both are 0 if unknown. Only the first call changes
// the load.
func (a *Assignment) Prefilled(tokens, cached int) {
	a.stopWaiting()
	if tokens == 0 {
		return
	}
	if a.ratio != nil {
		a.ratio.learn(a.bytes, tokens)
	}
	expected := a.Cached
	if a.Tokens > 0 {
		expected = int(int64(a.Cached) * int64(tokens) / int64(a.Tokens)) // both were estimates
	}
	h := a.counter.hits
	h.asked.Add(int64(tokens))
	h.expected.Add(int64(expected))
	h.found.Add(int64(cached))
}

// Refused records that the instance has refused the prompt, of which it has computed nothing.
func (a *Assignment) Refused() { a.assigned.Undo() }

// stopWaiting removes the prompt from the tokens that wait at the instance.
func (a *Assignment) stopWaiting() {
	if n := a.waiting.Swap(0); n != 0 {
		a.load.Waiting.Add(-n)
	}
}

// Done ends the leg and removes it from the load of the instance. Only the first call counts; on
// nil it does nothing.
func (a *Assignment) Done() {
	if a != nil && a.done.CompareAndSwap(false, true) {
		a.stopWaiting()
		a.load.End(a.Tokens)
		if a.score != 0 {
			a.load.ScoreOf(a.Instance.Role).Add(-a.score)
		}
		a.counter.hits.legs[a.Instance.Role.Index()].Add(-1)
	}
}

// begin adds the leg to the load of the instance.
func (a *Assignment) begin() {
	a.counter.hits.legs[a.Instance.Role.Index()].Add(1)
	a.load.Begin(a.Tokens)
}
