package sched

import (
	"strconv"
	"sync"
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
	// Labels selects the instances that may be picked; nil: any. See package modelroute.
	Labels instance.Selector
	// Partner is the other half of the pair; nil if there is none or it is not chosen yet. Its dialect must
	// be the same.
	Partner *Assignment
	// Unpaired reports whether a prefill instance may be picked without a decode instance to pair it with.
	Unpaired bool
	// Session is the session id of the client, "" for none; see Options.NoBinding.
	Session string
	// Tried are the instances that this request must not get again. The caller must not change its elements.
	Tried []instance.Key
	// TriedRanks are ranks, of instances with several, that the request must not get again. Their other ranks
	// are picked only if no other instance is left.
	TriedRanks []Target
	// Rank is the data-parallel rank that the request must get, if Ranked. Of an instance without that rank,
	// it may get any.
	Ranked bool
	Rank   int
	// Prompt is the prompt or the messages, as in the body; see request.Reading. It is not kept.
	Prompt []byte
	// Head is the text that the model reads before the prompt, as in the body: tools, instructions, the salt
	// of the cache. It is not kept.
	Head [][]byte
	// Media reports whether the prompt is more than text, so that its length does not predict its tokens.
	Media bool
	// TokensIdentifyCache reports whether the tokens of the prompt determine its KV cache, and a
	// prefill instance can be queried for them.
	TokensIdentifyCache bool
	// Length is the length of the body in bytes.
	Length int
	// Measure reports whether the assignment needs Queued and Running.
	Measure bool
	// Tentative reports whether the caller may still decide not to send the leg. If it sends the leg, it must
	// call Assignment.Confirm. Until then, policies and tallies ignore the pick, but it counts as in flight.
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
// The only required order is Unfetched before Done. Every call but Pick and Done may be absent, and calls
// that no longer apply have no effect. NoteProgress and Full may be called at any time.
type Assignment struct {
	Instance *instance.Instance
	// Rank is the data-parallel rank of the instance.
	Rank int
	// PairKey has the properties that the partner must match; see Options. Its Connector is the resolved
	// dialect.
	connector.PairKey
	// Policy is the name of the policy that chose.
	Policy string
	// Revision is the revision of the snapshot that the choice was made from.
	Revision int64
	// Tokens is the estimated number of tokens of the prompt, Cached the number of them that the policy
	// expects in the cache of the instance; 0 if unknown.
	Tokens, Cached int
	// Queued is the number of tokens that waited there when it was picked, including those of other proxies,
	// Running the number of legs in flight; see Request.Measure.
	Queued, Running int64
	// Lesson is the policy's request for the tokens of the prompt, which prefill's answer can return.
	Lesson policy.Lesson
	// Elsewhere is the reason for not picking the preferred instance; "" if it was picked. See
	// Tally.Elsewhere.
	Elsewhere string

	passedOver *policy.Candidate // the candidate of its session that was not chosen; set only during the pick
	counter    *counter
	counts     [5]*atomic.Uint64 // the tallies that count the pick once it is confirmed; nil: none
	tentative  policy.Tentative
	assigned   policy.Assigned
	pins       *pins
	load       *policy.Load // of the rank
	bytes      int          // the length from which Tokens was estimated
	ratio      *ratio       // nil: nothing is learned from the prompt
	waiting    atomic.Int64 // tokens that it has added to Load.Waiting
	score      int64        // score that it has added to Load.Scores
	wanted     wanted       // the requirements for an instance that takes the leg over
	wait       wait         // guarded by counter.waiting.mu
	done       atomic.Bool
}

// Address returns the address of the instance, followed by # and the rank if it has several ranks.
func (a *Assignment) Address() string { return AddressOf(a.Instance, a.Rank) }

// AddressOf is Assignment.Address for a rank of an instance.
func AddressOf(in *instance.Instance, rank int) string {
	if in.Ranks() == 1 {
		return in.Address
	}
	return in.Address + "#" + strconv.Itoa(rank)
}

// Confirm records that the leg of a tentative pick is sent to the picked instance.
func (a *Assignment) Confirm() {
	a.tentative.Confirm()
	for i, n := range a.counts {
		if n != nil {
			n.Add(1)
		}
		a.counts[i] = nil
	}
}

// Full reports whether another instance should compute the prompt if one can: the last report of the engine
// shows queued requests or a full KV cache, or the prompts of all legs there fill the cache.
// Requests that wait for a KV transfer are not queued; engines that do not report them separately are full
// more often.
func (a *Assignment) Full() bool {
	if capacity := a.load.Capacity.Load(); capacity > 0 && float64(a.load.Held.Load())+a.load.Others.Held.Load() > capacity {
		return true
	}
	report := a.load.Engine.Load()
	return report != nil && (report.Full() || report.All.Waiting > max(report.All.Deferred, report.All.Fetching))
}

// NoteProgress records that part of an answer that the engine core computed has arrived.
func (a *Assignment) NoteProgress() { a.counter.progress.Add(1) }

// ShouldMove reports whether another instance should continue a stream of this one, because it was drained
// with MoveAfter and that time has passed.
func (a *Assignment) ShouldMove() bool {
	at := a.counter.hits.moves[a.Instance.Role.Index()].Load()
	return at != 0 && time.Now().UnixNano() >= at
}

// Prefilled records that the instance has computed the prompt, which therefore no longer waits there. tokens
// is the length of the prompt and cached its part in the prefix cache, as reported by a prefill instance;
// both are 0 if unknown. Only the first call changes the load.
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

// Refused records that the instance has refused the prompt and computed none of it.
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

// pins records the prefill instances that hold KV caches which were never fetched, and until when. It is
// written when a request fails, and read when an instance is drained.
type pins struct {
	mu    sync.Mutex // guards until
	until map[string]time.Time
}

// pinned returns the key of an engine in pins: address and incarnation, because a restart clears its KV
// cache.
func pinned(in *instance.Instance) string { return in.Address + " " + in.Incarnation() }

func (p *pins) add(engine string, until, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for a, t := range p.until {
		if !t.After(now) {
			delete(p.until, a)
		}
	}
	if until.After(now) && until.After(p.until[engine]) {
		if p.until == nil {
			p.until = map[string]time.Time{}
		}
		p.until[engine] = until
	}
}

// Unfetched records that a prefill instance holds the KV cache of this pick until the given time, because
// decode has not fetched it. It has no effect after Done: decode has fetched it then.
func (a *Assignment) Unfetched(until time.Time) {
	if a.pins != nil && !a.done.Load() {
		a.pins.add(pinned(a.Instance), until, time.Now())
	}
}

// Pinned reports whether a prefill instance holds KV caches that were never fetched.
func (l *Loads) Pinned(in *instance.Instance, now time.Time) bool {
	if in.Role != instance.Prefill {
		return false
	}
	l.pins.mu.Lock()
	defer l.pins.mu.Unlock()
	return l.pins.until[pinned(in)].After(now)
}
