package sched

import (
	"strconv"
	"sync/atomic"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
)

// Target is one data-parallel rank of an instance.
type Target struct {
	instance.Key
	Rank int
}

// Request says what is wanted of one pick.
type Request struct {
	Role  instance.Role
	Model string
	// Partner is the other half of the pair, nil if it is not chosen yet or
	// there is none; its dialect must be the same.
	Partner *Assignment
	// Alone tells that a prefill instance needs no decode instance to go with it.
	Alone bool
	// Session is what the client calls its session, "" for none; see
	// Options.NoBinding.
	Session string
	// Tried are the instances that this request must not get again. What stands in it
	// does not change any more.
	Tried []instance.Key
	// TriedRanks are single ranks that it must not get again, of instances with several.
	// Their other ranks it gets while there is no other instance that it may have.
	TriedRanks []Target
	// Rank is the data-parallel rank that it wants of an instance that has it, if Ranked.
	// An instance with fewer ranks may be picked on any of them.
	Ranked bool
	Rank   int
	// Prompt is the prompt or the messages, as they stand in the body. It is not kept.
	Prompt []byte
	// Head is what stands before the prompt in what the model reads, as it stands in the
	// body: tools, instructions, the salt of the cache. It is not kept.
	Head [][]byte
	// TokensTell says that the KV cache of the prompt follows from its tokens alone, and
	// that a prefill instance can be asked for them.
	TokensTell bool
	// Length of the body in bytes.
	Length int
	// Priority of the request, if it may have one; 0 usually.
	Priority int
	// Measure has the assignment say what there was to do before it.
	Measure bool
	// Tentative tells that the leg may not go to the instance that is picked; if it does,
	// Assignment.Confirm says so. Until then policies and counts know nothing of the pick;
	// what is in flight does.
	Tentative bool
}

// Assignment is one pick. Done must be called when the leg has ended.
type Assignment struct {
	Instance *instance.Instance
	// Rank is the data-parallel rank of the instance.
	Rank int
	// Connector is the resolved dialect of the instance.
	Connector string
	// Build and Blocks are what its partner must have in common with it; see Options.
	Build  string
	Blocks int
	// Policy is the name of the one that chose.
	Policy string
	// Revision of the snapshot that the choice was made from.
	Revision int64
	// Tokens of the prompt, by an estimate, and how many of them the policy expects in
	// the cache of the instance; 0 where it does not know.
	Tokens, Cached int
	// Queued are the tokens that waited there before it, by Load.Waiting and what other
	// proxies say, and Running the legs that were in flight; see Request.Measure.
	Queued, Running int64
	// Lesson is what the policy wants to learn from prefill's answer.
	Lesson policy.Lesson
	// Elsewhere is why another instance would have been preferred; "" if none would. See
	// Tally.Elsewhere.
	Elsewhere string

	passedOver *policy.Candidate // that is its session's, while it is being picked
	counter    *counter
	counts     [4]*atomic.Uint64 // that the pick is counted in; nil: none
	tentative  policy.Tentative
	pins       *pins
	load       *policy.Load // of the rank
	bytes      int          // of what Tokens is the estimate
	ratio      *ratio
	waiting    atomic.Int64 // what it has added to Load.Waiting
	score      int64        // what it has added to Load.Scores
	wanted     wanted       // what else would do
	wait       wait         // guarded by counter.waiting.mu
	done       atomic.Bool
}

// Address is that of the instance, with the number of the rank behind a # if it has
// several.
func (a *Assignment) Address() string { return AddressOf(a.Instance, a.Rank) }

// AddressOf is Assignment.Address of a rank of an instance.
func AddressOf(in *instance.Instance, rank int) string {
	if in.Ranks() == 1 {
		return in.Address
	}
	return in.Address + "#" + strconv.Itoa(rank)
}

// Confirm tells that the leg of a tentative pick goes where the pick says.
func (a *Assignment) Confirm() {
	a.tentative.Confirm()
	for i, n := range a.counts {
		if n != nil {
			n.Add(1)
		}
		a.counts[i] = nil
	}
}

// Full tells that no prompt should be put on the instance that another can compute: as
// far as its engine said last, requests wait for their turn or its KV cache has no room, or
// the prompts of all legs there leave none. Requests that wait for their KV cache wait
// for nobody's turn; engines that do not tell them apart are full more often.
func (a *Assignment) Full() bool {
	if room := a.load.Capacity.Load(); room > 0 && float64(a.load.Held.Load())+a.load.Others.Held.Load() > room {
		return true
	}
	said := a.load.Engine.Load()
	return said != nil && (said.Full() || said.All.Waiting > max(said.All.Deferred, said.All.Fetching))
}

// pairKey is what decides with which instances this one can be paired.
func (a *Assignment) pairKey() pairKey { return pairKey{a.Connector, a.Build, a.Blocks} }

// Heard notes a sign of life of the instance: bytes of an answer.
func (a *Assignment) Heard() { a.counter.heard.Add(1) }

// Done counts the pick back. Only the first call counts.
func (a *Assignment) Done() {
	if a != nil && a.done.CompareAndSwap(false, true) {
		a.Computed(0)
		a.load.End(a.Tokens)
		if a.score != 0 {
			a.load.ScoreOf(a.Instance.Role).Add(-a.score)
		}
	}
}

// Computed tells that the instance has the KV cache of the prompt: what waits for it
// there does so no longer. tokens are those of the prompt, 0 if they are not known.
// Only the first call counts.
func (a *Assignment) Computed(tokens int) {
	if n := a.waiting.Swap(0); n != 0 {
		a.load.Waiting.Add(-n)
	}
	if tokens > 0 && a.ratio != nil {
		a.ratio.learn(a.bytes, tokens)
	}
}

// Prefilled is Computed by an instance whose answer says how many tokens the prompt has and
// how many of them were in its cache; 0 and 0 where it does not say.
func (a *Assignment) Prefilled(tokens, cached int) {
	expected := a.Cached
	if tokens > 0 && a.Tokens > 0 {
		expected = int(int64(a.Cached) * int64(tokens) / int64(a.Tokens)) // both were estimates
	}
	a.Computed(tokens)
	if tokens == 0 {
		return
	}
	h := a.counter.hits
	h.asked.Add(int64(tokens))
	h.expected.Add(int64(expected))
	h.found.Add(int64(cached))
}
