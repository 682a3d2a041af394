package policy

import (
	"sync"

	"github.com/pdmesh/pdmesh/internal/indexmem"
	"github.com/pdmesh/pdmesh/internal/kvindex"
	"github.com/pdmesh/pdmesh/internal/prefix"
)

// Caches is what the engines' own events tell of their KV caches; see kvindex.Index. It
// must be safe for concurrent use.
type Caches interface {
	// BlockSize is how many tokens a block of the target has, 0 while that is not known.
	BlockSize(t kvindex.Target) int
	// Complete reports whether what Longest does not find in a target is not there.
	Complete(t kvindex.Target) bool
	// Longest finds for each target how many of a prompt's first blocks it holds, or
	// kvindex.Unknown.
	Longest(keys []kvindex.Key, targets []kvindex.Target, out []int)
}

// newKVAware makes the policy that goes by what engines say they have cached: prefix,
// corrected where the tokens of a prompt's beginning are known. It sees what was evicted,
// and what other proxies had computed.
func newKVAware(o Options) Policy {
	p := newPrefixCache(&o)
	if o.Caches != nil {
		p.exact = &exact{caches: o.Caches, memory: p.memory, names: prefix.NewNames(p.memory)}
	}
	return p
}

// exact knows what engines hold of prompts whose tokens are known. The lock of its policy
// guards it.
type exact struct {
	caches Caches
	memory *indexmem.Budget
	names  *prefix.Names
	// trusted reports whether blocks were found under our names. Until then nothing is
	// believed: engines may name more than the tokens, such as an adapter.
	trusted bool
	closed  bool // nothing is learned any more

	asked   int        // whose block size was asked for last, while nobody tells any
	list    *Candidate // the first of the list that all is of
	all     []kvindex.Target
	targets []kvindex.Target // of one choice
	held    []int            // blocks that each of them holds
	known   int              // blocks of the prompt whose names are known
	seen    bool             // blocks were found, now or before: see trusted
	size    int              // tokens in a block; all names are of such blocks
	bytes   int              // of the prompt in these blocks, at most
	// block is how many tokens a block counts by the estimate that the request's other
	// tokens are counted by: its size where that is right.
	block float64
}

// look finds out what the candidates hold of a prompt of so many tokens, by an estimate. Who only looks has nothing kept in
// mind of it; then used says so later.
func (e *exact) look(c *Candidates, chain *prefix.Chain, tokens int, only bool) {
	if e.list != &c.list[0] || len(e.all) != len(c.list) {
		e.list, e.all = &c.list[0], e.all[:0]
		for i := range c.list {
			e.all = append(e.all, kvindex.Target{Address: c.list[i].Instance.Address, Rank: c.list[i].Rank})
		}
		e.fit()
	}
	if e.size == 0 { // one after the other: each takes a lock
		e.asked = (e.asked + 1) % len(e.all)
		if e.caches.BlockSize(e.all[e.asked]) > 0 {
			e.fit()
		}
	}
	e.known, e.seen = 0, e.trusted
	if e.size == 0 {
		return // nobody publishes events
	}
	var names []kvindex.Key
	if only {
		names, e.bytes = e.names.Peek(chain)
	} else {
		names, e.bytes = e.names.Find(chain)
	}
	if len(names) == 0 {
		return
	}
	e.targets = e.targets[:0]
	for i := range c.Len() {
		e.targets = append(e.targets, e.all[c.Index(i)])
	}
	e.held = grown(e.held, len(e.targets))
	e.caches.Longest(names, e.targets, e.held)
	for _, n := range e.held {
		e.seen = e.seen || n > 0
	}
	if e.seen {
		e.known = len(names)
	}
	e.block = float64(e.size)
	if counted := e.names.Density(chain) * float64(chain.Total()); counted > 0 {
		e.block *= float64(tokens) / counted
	}
	e.trusted = e.trusted || e.seen && !only
}

// used notes what look left out. seen is what it found.
func (e *exact) used(chain *prefix.Chain, seen bool) {
	e.names.Find(chain)
	e.trusted = e.trusted || seen
}

// fit finds the size of the candidates' blocks. Names of blocks of another size are of no
// use any more.
func (e *exact) fit() {
	size := 0
	for _, t := range e.all {
		if size = e.caches.BlockSize(t); size == e.size && size > 0 {
			return
		}
		if size > 0 {
			break
		}
	}
	if size > 0 {
		e.size = size
		e.names.Clear()
	}
}

// correct returns how many tokens the i-th candidate holds, of whom so many are expected.
// What lies behind the blocks that are known can only be expected.
func (e *exact) correct(i, expected int) int {
	if e.known == 0 {
		return expected
	}
	held := e.held[i]
	tokens := int(float64(held) * e.block)
	switch {
	case held == kvindex.Unknown, e.caches.BlockSize(e.targets[i]) != e.size:
		return expected
	case held < e.known && e.caches.Complete(e.targets[i]):
		return tokens
	default:
		return max(expected, tokens)
	}
}

// Lesson is what a policy wants to learn from the answer of the prefill instance that it
// has chosen: the tokens of the prompt. The zero value wants nothing.
type Lesson struct {
	mu     *sync.Mutex
	exact  *exact
	chain  *prefix.Chain
	tokens int // in a block
}

// Wanted reports whether the tokens are wanted.
func (l *Lesson) Wanted() bool { return l.exact != nil }

// Learn takes the tokens in.
func (l *Lesson) Learn(tokens []uint32) {
	names := kvindex.Chain(nil, tokens, l.tokens, "", "")
	defer l.exact.memory.Enforce()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tokens == l.exact.size && !l.exact.closed {
		l.exact.names.Learn(l.chain, names, l.tokens, len(tokens))
	}
}

// unconfirmed is the part of a prompt that must be new for its tokens to be asked for. A
// chat asks a few times while it doubles, not with each turn.
const unconfirmed = 8

// lesson asks for the tokens of a prompt if they are worth it: part of its own text was
// seen before, so that it may come again, and much of it has no names yet.
func (e *exact) lesson(l *Lesson, mu *sync.Mutex, chain *prefix.Chain, seen bool) {
	if l == nil || e.size == 0 || !seen || (chain.Total()-e.bytes)*unconfirmed < chain.Total() {
		return
	}
	*l = Lesson{mu: mu, exact: e, chain: chain.Clone(), tokens: e.size}
}
