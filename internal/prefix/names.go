package prefix

import (
	"container/list"
	"slices"
	"sort"
	"unsafe"

	"github.com/pdmesh/pdmesh/internal/indexmem"
	"github.com/pdmesh/pdmesh/internal/kvindex"
)

// Names remembers the names of the KV blocks that texts begin with, from prompts whose
// tokens an engine has told. A text is tokenized the same way wherever it is at the
// beginning of a prompt, but for its last tokens, which depend on what follows: so the
// blocks of a text count as known when two prompts have that text in common, and go on
// differently, and both begin with these blocks.
//
// It is not safe for concurrent use.
type Names struct {
	at     map[Key]place
	oldest *list.List // of *told; the front was used last
	memory *indexmem.Budget
	bytes  int64 // of memory
}

// Memory is the estimated memory of all prompts in bytes.
func (n *Names) Memory() int { return int(n.bytes) }

// resize counts memory, and reports it.
func (n *Names) resize(by int64) {
	n.bytes += by
	n.memory.Add(indexmem.Prompts, by)
}

// told are the blocks of one prompt.
type told struct {
	names   []kvindex.Key
	density float64 // tokens in a byte of the prompt
	borders []Key   // that have a place in it
	element *list.Element
	used    uint32 // tick of the last use, see indexmem
}

// size estimates the memory of a prompt and its places in bytes.
func (is *told) size() int64 {
	const place = 40 // in the map
	return int64(unsafe.Sizeof(*is)+unsafe.Sizeof(list.Element{})) + int64(cap(is.names))*8 + int64(cap(is.borders))*8 + int64(len(is.borders))*place
}

// place is where the blocks of the text up to a border are found.
type place struct {
	of     *told
	blocks int // that are known to belong to the text
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

// last is the least recently used prompt, nil if there is none.
func (n *Names) last() *told {
	if e := n.oldest.Back(); e != nil {
		last, _ := e.Value.(*told)
		return last
	}
	return nil
}

// Evict forgets prompts that were last used up to a tick, until it has freed so many bytes
// of memory.
func (n *Names) Evict(until uint32, bytes int64) {
	for last := n.last(); last != nil && bytes > 0 && indexmem.Before(last.used, until); last = n.last() {
		bytes -= last.size()
		n.forget(last)
	}
}

// Clear forgets all prompts.
func (n *Names) Clear() {
	for last := n.last(); last != nil; last = n.last() {
		n.forget(last)
	}
}

// Find returns the names of the blocks that a prompt begins with, as far as they are known,
// and how many of its bytes that takes at most. They are not changed any more. What is
// found is of use, and forgotten later.
func (n *Names) Find(c *Chain) (names []kvindex.Key, bytes int) {
	is, bytes := n.longest(c)
	if is.of == nil {
		return nil, 0
	}
	n.oldest.MoveToFront(is.of.element)
	is.of.used = n.memory.Now()
	return is.of.names[:is.blocks], bytes
}

// Peek is Find for who only looks.
func (n *Names) Peek(c *Chain) (names []kvindex.Key, bytes int) {
	is, bytes := n.longest(c)
	if is.of == nil {
		return nil, 0
	}
	return is.of.names[:is.blocks], bytes
}

// longest is the place of the longest beginning of a prompt that has names, and its bytes.
func (n *Names) longest(c *Chain) (is place, bytes int) {
	for i, key := range slices.Backward(c.keys) {
		if is := n.at[key]; is.blocks > 0 {
			return is, end(i + 1)
		}
	}
	return place{}, 0
}

// Density is how many tokens a byte of the prompt has that Find goes by; 0 where it finds
// nothing.
func (n *Names) Density(c *Chain) float64 {
	if is, _ := n.longest(c); is.of != nil {
		return is.of.density
	}
	return 0
}

// Learn takes in the names of a prompt's blocks, each of so many tokens, and how many
// tokens it has in all.
func (n *Names) Learn(c *Chain, names []kvindex.Key, blockSize, tokens int) {
	border := len(c.keys) - 1
	for border >= 0 {
		if _, ok := n.at[c.keys[border]]; ok {
			break
		}
		border--
	}
	own := &told{names: names, density: float64(tokens) / float64(max(c.total, 1)), used: n.memory.Now()}
	own.element = n.oldest.PushFront(own)
	common := 0
	if border >= 0 {
		is := n.at[c.keys[border]]
		common = inCommon(is.of.names, names)
		// The two part somewhere between this border and the next. What another prompt
		// shares with both may end right behind the border.
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

// blocksIn is how many blocks so many bytes may reach into: a token has at least one.
func blocksIn(bytes, blockSize int) int { return (bytes + blockSize - 1) / blockSize }

// inCommon is how many keys two prompts begin with. A key represents all before it, too.
func inCommon[K Key | kvindex.Key](a, b []K) int {
	return sort.Search(min(len(a), len(b)), func(i int) bool { return a[i] != b[i] })
}

// forget forgets a prompt.
func (n *Names) forget(is *told) {
	n.oldest.Remove(is.element)
	n.resize(-is.size())
	for _, key := range is.borders {
		if n.at[key].of == is {
			delete(n.at, key)
		}
	}
}
