package policy

import (
	"slices"
	"sync"

	"github.com/pdmesh/pdmesh/internal/kvcache/indexmem"
	"github.com/pdmesh/pdmesh/internal/kvcache/kvindex"
	"github.com/pdmesh/pdmesh/internal/kvcache/prefix"
)

// newKVAware returns the policy that uses the engines' KV events: the policy prefix, corrected for prompts
// whose first tokens are known. It accounts for evictions and for prompts of other proxies.
func newKVAware(o Options) Policy {
	p := newPrefixCache(&o)
	if o.Caches != nil {
		p.exact = &exact{caches: o.Caches, memory: p.memory, names: prefix.NewNames(p.memory)}
	}
	return p
}

// exact looks up the blocks that engines hold of prompts whose tokens are known. The mutex of its policy
// guards it.
type exact struct {
	caches *kvindex.Index
	memory *indexmem.Budget
	names  *prefix.Names
	// trusted reports whether any blocks were ever found by names computed here. Until then the results are
	// not used: engines may hash more than the tokens, such as an adapter.
	trusted bool
	closed  bool // nothing is learned any more

	lastRead int        // index in all of the target whose block size was read last
	list     *Candidate // the first candidate of the list that all describes
	all      []kvindex.Target
	targets  []kvindex.Target // of one choice
	held     []int            // blocks that each of targets holds
	adapter  bool             // the model is a LoRA adapter, whose blocks have different names
	known    int              // blocks of the prompt whose names are known
	seen     bool             // blocks were found, now or before; see trusted
	size     int              // tokens in a block; the same for all names
	bytes    int              // upper bound of the bytes of the prompt in these blocks
	// block is the number of tokens in a block by the estimate of Request.Tokens; equal to size if the
	// estimate is exact.
	block float64
}

// lookup finds the blocks that the candidates hold of a prompt of a model; tokens is its estimated length. With
// readOnly, lookup records nothing; recordLookup does so later.
func (e *exact) lookup(c *Candidates, chain *prefix.Chain, model string, tokens int, readOnly bool) {
	if e.list != &c.list[0] || len(e.all) != len(c.list) {
		e.list, e.all = &c.list[0], e.all[:0]
		for i := range c.list {
			e.all = append(e.all, kvindex.Target{Address: c.list[i].Instance.Address, Rank: c.list[i].Rank})
		}
		e.fit()
	}
	// An engine has a block size once it has a block. Each choice reads the size of one target.
	e.lastRead = (e.lastRead + 1) % len(e.all)
	if size := e.caches.BlockSize(e.all[e.lastRead]); size > 0 && size != e.size {
		e.fit()
	}
	e.known, e.seen, e.adapter = 0, e.trusted, e.caches.Adapter(model)
	if e.size == 0 || e.adapter {
		return // no engine publishes events, or the model is an adapter: names are learned for base models only
	}
	names, bytes, density := e.names.Find(chain, !readOnly)
	e.bytes = bytes
	if len(names) == 0 {
		return
	}
	e.targets = e.targets[:0]
	for i := range c.Len() {
		e.targets = append(e.targets, e.all[c.Index(i)])
	}
	e.held = slices.Grow(e.held[:0], len(e.targets))[:len(e.targets)]
	e.caches.Longest(names, e.targets, e.held)
	for _, n := range e.held {
		e.seen = e.seen || n > 0
	}
	if e.seen {
		e.known = len(names)
	}
	e.block = float64(e.size)
	if counted := density * float64(chain.Total()); counted > 0 {
		e.block *= float64(tokens) / counted
	}
	e.trusted = e.trusted || e.seen && !readOnly
}

// recordLookup records the results that a read-only lookup has not recorded. seen is exact.seen of that lookup.
func (e *exact) recordLookup(chain *prefix.Chain, seen bool) {
	e.names.Find(chain, true)
	e.trusted = e.trusted || seen
}

// fit sets the block size to that of the candidates. If it changes, the names are removed.
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

// correct returns the number of cached tokens of candidate i, given the estimate expected. Beyond the last
// block whose name is known, only the estimate is available.
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

// Lesson is the request of a policy for the tokens of a prompt, to be taken from the answer of the
// chosen prefill instance. The zero value requests nothing.
type Lesson struct {
	mu     *sync.Mutex
	exact  *exact
	chain  *prefix.Chain
	tokens int // in a block
}

// Wanted reports whether the policy wants the tokens.
func (l *Lesson) Wanted() bool { return l.exact != nil }

// Learn passes the tokens to the policy.
func (l *Lesson) Learn(tokens []uint32) {
	names := kvindex.Chain(nil, tokens, l.tokens, "", "")
	defer l.exact.memory.Enforce()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tokens == l.exact.size && !l.exact.closed {
		l.exact.names.Learn(l.chain, names, l.tokens, len(tokens))
	}
}

// unconfirmed: the tokens of a prompt are requested if at least 1/unconfirmed of it has no names. So a chat
// requests them a few times while its length doubles, not in each turn.
const unconfirmed = 8

// lesson requests the tokens of a prompt if that is useful: much of it has no names yet, and some text that
// is specific to it was seen before. Then it may return.
func (e *exact) lesson(l *Lesson, mu *sync.Mutex, chain *prefix.Chain, seen bool) {
	if l == nil || e.size == 0 || e.adapter || !seen || (chain.Total()-e.bytes)*unconfirmed < chain.Total() {
		return
	}
	*l = Lesson{mu: mu, exact: e, chain: chain.Clone(), tokens: e.size}
}
