package prefix

import (
	"container/list"
	"slices"
	"sort"
	"unsafe"

	"github.com/pdmesh/pdmesh/internal/kvcache/indexmem"
	"github.com/pdmesh/pdmesh/internal/kvcache/kvindex"
)

// Names maps the beginnings of prompts to the names of their KV blocks, learned from prompts whose tokens an
// engine has returned. A text at the beginning of a prompt is always tokenized in the same way, except for
// its last tokens, which depend on the text after it. So the blocks of a text are known once two prompts
// begin with this text and these blocks, and then continue differently.
//
// NewNames creates it. It is not safe for concurrent use.
type Names struct {
	at     map[Key]place
	oldest *list.List // of *tokenized; the most recently used first
	memory *indexmem.Budget
	bytes  int64 // of memory
}

// Memory returns the estimated memory of all prompts in bytes.
func (n *Names) Memory() int { return int(n.bytes) }

// resize changes the counted memory and reports the change.
func (n *Names) resize(by int64) {
	n.bytes += by
	n.memory.Add(indexmem.Prompts, by)
}

// tokenized has the blocks of one prompt.
type tokenized struct {
	names   []kvindex.Key
	density float64 // tokens per byte of the prompt
	borders []Key   // borders whose place refers to it
	element *list.Element
	used    uint32 // tick of the last use, see indexmem
}

// size returns the estimated memory of a prompt and its places in bytes.
func (is *tokenized) size() int64 {
	const place = 40 // in the map
	return int64(unsafe.Sizeof(*is)+unsafe.Sizeof(list.Element{})) + int64(cap(is.names))*8 + int64(cap(is.borders))*8 + int64(len(is.borders))*place
}

// place refers to the blocks of the text up to a border.
type place struct {
	of     *tokenized
	blocks int // number of blocks that are known to belong to the text
}

// NewNames returns a Names that reports its memory to a Budget.
func NewNames(memory *indexmem.Budget) *Names {
	return &Names{at: map[Key]place{}, oldest: list.New(), memory: memory}
}

// Oldest returns the tick in which the least recently used prompt was used.
func (n *Names) Oldest() (tick uint32, ok bool) {
	if last := n.last(); last != nil {
		return last.used, true
	}
	return 0, false
}

// last returns the least recently used prompt, nil if there is none.
func (n *Names) last() *tokenized {
	if e := n.oldest.Back(); e != nil {
		last, _ := e.Value.(*tokenized)
		return last
	}
	return nil
}

// Evict removes prompts that were last used up to a tick, until it has freed the given number of
// bytes.
func (n *Names) Evict(until uint32, bytes int64) {
	for last := n.last(); last != nil && bytes > 0 && indexmem.Before(last.used, until); last = n.last() {
		bytes -= last.size()
		n.forget(last)
	}
}

// Clear removes all prompts.
func (n *Names) Clear() {
	for last := n.last(); last != nil; last = n.last() {
		n.forget(last)
	}
}

// Find returns the known names of a prompt's first blocks, an upper bound of their bytes, and the tokens per
// byte of the prompt from which they were learned. The caller must not change the names. With use, the entry
// counts as used.
func (n *Names) Find(c *Chain, use bool) (names []kvindex.Key, bytes int, density float64) {
	for i, key := range slices.Backward(c.keys) {
		is := n.at[key]
		if is.blocks == 0 {
			continue
		}
		if use {
			n.oldest.MoveToFront(is.of.element)
			is.of.used = n.memory.Now()
		}
		return is.of.names[:is.blocks], end(i + 1), is.of.density
	}
	return nil, 0, 0
}

// Learn adds a prompt: the names of its blocks of blockSize tokens, and its number of tokens.
func (n *Names) Learn(c *Chain, names []kvindex.Key, blockSize, tokens int) {
	border := len(c.keys) - 1
	for border >= 0 {
		if _, ok := n.at[c.keys[border]]; ok {
			break
		}
		border--
	}
	own := &tokenized{names: names, density: float64(tokens) / float64(max(c.total, 1)), used: n.memory.Now()}
	own.element = n.oldest.PushFront(own)
	common := 0
	if border >= 0 {
		is := n.at[c.keys[border]]
		common = inCommon(is.of.names, names)
		// The two prompts diverge between this border and the next. Another prompt may share text with both
		// only up to a position right after the border.
		if sure := common - blocksIn(step(end(border+1)), blockSize); sure > is.blocks {
			n.at[c.keys[border]] = place{is.of, sure}
		}
	}
	for _, key := range c.keys[border+1:] {
		n.at[key] = place{own, common}
		own.borders = append(own.borders, key)
	}
	n.resize(own.size())
}

// blocksIn returns an upper bound of the number of blocks that the given number of bytes may reach into: a
// token has at least one byte.
func blocksIn(bytes, blockSize int) int { return (bytes + blockSize - 1) / blockSize }

// inCommon returns the number of leading keys that two prompts have in common. A key also represents all text
// before it, which permits a binary search.
func inCommon[K Key | kvindex.Key](a, b []K) int {
	return sort.Search(min(len(a), len(b)), func(i int) bool { return a[i] != b[i] })
}

// forget removes a prompt.
func (n *Names) forget(is *tokenized) {
	n.oldest.Remove(is.element)
	n.resize(-is.size())
	for _, key := range is.borders {
		if n.at[key].of == is {
			delete(n.at, key)
		}
	}
}
