// Package policy has the policies that choose one of several instances for a request. Role, model, state,
// health and partner are checked first: a policy may choose any of its candidates.
//
// docs/architecture.md lists the files that a new policy needs.
package policy

import (
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/kvcache/indexmem"
	"github.com/pdmesh/pdmesh/internal/kvcache/kvindex"
	"github.com/pdmesh/pdmesh/internal/kvcache/prefix"
)

// Policy chooses from one list of candidates: the instances of a role that serve a model. Each list has its
// own Policy, which is kept across changes of the membership and may keep state. A Policy must be safe for
// concurrent use, must not block, and takes random numbers from Options.Rand only.
type Policy interface {
	// Choose returns the index of the chosen candidate, less than c.Len(), which is at least 1; or -1 if the
	// policy does not apply to the request: then the default policy chooses. cached is the expected number of
	// prompt tokens in the cache of the chosen candidate, 0 if unknown. A tentative choice has no effect on
	// later ones until it is confirmed.
	Choose(c Candidates, r Request) (at, cached int)
}

// Options configure a policy.
type Options struct {
	// Rand returns numbers in [0, 1).
	Rand func() float64
	// Start is the first turn of a policy that takes turns.
	Start uint64
	// Now returns the time; nil: time.Now.
	Now func() time.Time
	// CacheWeight is the number of waiting prompt tokens with the same cost as one uncached token, for
	// policies that estimate caches; 0: DefaultCacheWeight.
	CacheWeight float64
	// Caches provides the contents of KV caches; nil if unknown.
	Caches *kvindex.Index
	// Budget bounds the memory of policies that record prompts; nil: a separate one with the
	// default limit.
	Budget *indexmem.Budget
	// Placements exchanges placed prompts with other proxies; nil: none.
	Placements *prefix.Placements
}

// Recorder is a policy that records prompts.
type Recorder interface {
	// Remembered returns the total, including candidates that have just left.
	Remembered() Remembered
	// RememberedOf returns the part of one candidate, by its Hash.
	RememberedOf(hash uint64) Remembered
	// Close removes all records; the list of the policy is no longer used.
	Close()
}

// Remembered is the size of a policy's record of computed prompts.
type Remembered struct {
	Entries int // parts of prompts
	Text    int // bytes of these parts
	Memory  int // bytes of memory; 0 for a single candidate, since candidates share it
}

// Add adds another size.
func (r *Remembered) Add(o Remembered) {
	r.Entries += o.Entries
	r.Text += o.Text
	r.Memory += o.Memory
}

func (o *Options) now() time.Time {
	if o.Now == nil {
		return time.Now()
	}
	return o.Now()
}

// Request has the properties of a request that policies may use.
type Request struct {
	Role  instance.Role
	Model string
	// Session is the client's session id, "" for none.
	Session string
	// Prompt is the prompt or the messages as the client sent them. The policy must not retain
	// it.
	Prompt []byte
	// Head is the text that the model reads before the prompt, as the client sent it: tools, instructions,
	// the salt of the cache. The policy must not retain it.
	Head   [][]byte
	Tokens int // estimate for the head and the prompt
	// Lesson is set by a policy that wants to learn the tokens of the prompt; nil if they
	// cannot be obtained.
	Lesson *Lesson
	// Passed receives the candidate of the session if the policy does not choose it because it is overloaded;
	// nil if the caller does not need it.
	Passed **Candidate
	// Tentative is not nil if the leg may not be sent to the chosen candidate after all.
	Tentative *Tentative
	// Assigned receives the recorded tokens to compute, so that they can be removed again; may be nil.
	Assigned *Assigned
	// Explanation receives the scores of the candidates; usually nil.
	Explanation *Explanation
}

// Candidate is one data-parallel rank of an instance that may be chosen.
type Candidate struct {
	Instance *instance.Instance
	Rank     int
	// Weight is the weight of the instance, greater than 0, for each of its ranks.
	Weight float64
	// Load is shared by all lists that contain the rank.
	Load *Load
	// Hash depends only on the address and the rank, so it is the same in every proxy.
	Hash uint64
}

// NewCandidate returns the candidate of a rank of an instance whose weight is above 0.
func NewCandidate(in *instance.Instance, rank int, load *Load) Candidate {
	return Candidate{Instance: in, Rank: rank, Weight: float64(in.Weight()), Load: load, Hash: mix(hashText(in.Address) + uint64(rank))}
}
