// Package policy holds the rules that choose one of several instances for a
// request. A policy sees candidates that may all be picked: role, model, state,
// health and the other half of the pair are looked at before it is asked.
//
// docs/architecture.md lists what a new policy takes, file by file.
package policy

import (
	"time"

	"github.com/pdmesh/pdmesh/internal/indexmem"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/prefix"
)

// Policy chooses for one list of candidates: those of a role that serve a model.
// Each list has its own, which stays with it while the membership changes, so a
// policy may keep state. It must be safe for concurrent use, must not block, and
// takes its chances from Options.Rand.
type Policy interface {
	// Choose returns the place of the chosen candidate, from 0 up to c.Len(), which is
	// at least 1. -1 means that nothing in the request says which one: then the
	// default policy chooses. cached is how many tokens of the prompt the cache of the
	// chosen one should hold, 0 where the policy does not know. A choice that is
	// tentative changes nothing that a later one could see, until it is confirmed.
	Choose(c Candidates, r Request) (at, cached int)
}

// Options are what policies are made with.
type Options struct {
	// Rand returns numbers from 0 up to 1.
	Rand func() float64
	// Start is the turn that a policy which takes turns begins with.
	Start uint64
	// Now is the time; nil: time.Now.
	Now func() time.Time
	// CacheWeight is how many tokens of prompts that wait for an instance weigh as much as
	// one token in its cache, for policies that know caches; 0: DefaultCacheWeight.
	CacheWeight float64
	// Caches is what engines say of their KV caches; nil: nothing.
	Caches Caches
	// Memory is set by a policy that remembers prompts; nil if it is not needed.
	Memory *Memory
	// Budget bounds the memory of policies that remember prompts; nil: one of the policy
	// alone, with the default limit.
	Budget *indexmem.Budget
	// Placements are where policies find what other proxies have sent where, and leave what they
	// have; nil: nobody tells.
	Placements *prefix.Placements
}

// Memory is what a policy remembers of prompts. Its functions are safe for concurrent use.
// They are nil if the policy remembers nothing.
type Memory struct {
	// All returns what it remembers altogether, also of candidates that have just left.
	All func() Remembered
	// Of returns what it remembers of one candidate, by its Hash.
	Of func(hash uint64) Remembered
	// Close forgets everything, for good: its list is not used any more.
	Close func()
}

// Remembered is what a policy knows of prompts that were computed.
type Remembered struct {
	Entries int // parts of prompts
	Text    int // their bytes
	Memory  int // bytes of memory that they take; 0 for a single candidate, since candidates share it
}

func (o *Options) now() time.Time {
	if o.Now == nil {
		return time.Now()
	}
	return o.Now()
}

// Request is what a policy may know of a request.
type Request struct {
	Role  instance.Role
	Model string
	// Partner is the instance of the other half of the pair, nil if it is not chosen
	// yet or there is none.
	Partner *instance.Instance
	// Session is what the client calls its session, "" for none.
	Session string
	// Prompt is the prompt or the messages as the client sent them. It must not be
	// kept: it is memory of the request.
	Prompt []byte
	// Head is what precedes the prompt in what the model reads, as the client sent
	// it: tools, instructions, the salt of the cache. It must not be kept either.
	Head   [][]byte
	Tokens int // of the head and the prompt, by an estimate
	// Lesson is where a policy says that it wants to learn the tokens of the prompt; nil
	// where nobody can tell them.
	Lesson *Lesson
	// Passed is where a policy says which candidate, to which the request is bound, it has
	// passed over since that has too much to do; nil where nobody asks.
	Passed   **Candidate
	Length   int // bytes of the body
	Priority int // of requests that may have one; 0 usually
	// Tentative is set where the leg may not go to whom is chosen, nil where it does.
	Tentative *Tentative
	// Explanation is where a policy says what it goes by; nil, as usual: nobody asks.
	Explanation *Explanation
}

// Candidate is an instance, and one of its data-parallel ranks, that may be chosen.
type Candidate struct {
	Instance *instance.Instance
	Rank     int
	// Weight is the operator's, above 0: that of the instance for each of its ranks.
	Weight float64
	// Load is shared by all lists that the rank is in.
	Load *Load
	// Hash is made of the address and the rank alone, the same in every proxy.
	Hash uint64
}

// NewCandidate returns the candidate of a rank of an instance whose weight is above 0.
func NewCandidate(in *instance.Instance, rank int, load *Load) Candidate {
	return Candidate{Instance: in, Rank: rank, Weight: float64(in.Weight()), Load: load, Hash: mix(hashText(in.Address) + uint64(rank))}
}
