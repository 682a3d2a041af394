package prefix

import (
	"container/list"
	"slices"
	"sort"

	"github.com/pdmesh/pdmesh/internal/kvindex"
)

// Names remembers the names of the KV blocks that texts begin with, from prompts whose
// tokens an engine has told. A text is tokenized the same way wherever it stands at the
// beginning of a prompt, but for its last tokens, which depend on what follows: so the
// blocks of a text count as known when two prompts have that text in common, and go on
// differently, and both begin with these blocks.
//
// It is not safe for concurrent use.
type Names struct {
	at     map[Key]place
	oldest *list.List // of *told; the front was used last
	size   int        // names, of all that is told
	most   int
}

// told are the blocks of one prompt.
type told struct {
	names   []kvindex.Key
	density float64 // tokens in a byte of the prompt
	borders []Key   // that have a place in it
	element *list.Element
}

// place is where the blocks of the text up to a border are found.
type place struct {
	of     *told
	blocks int // that are known to belong to the text
}

// NewNames makes one that holds at most so many names, of 8 bytes each.
func NewNames(most int) *Names {
	return &Names{at: map[Key]place{}, oldest: list.New(), most: most}
}

// Find gives the names of the blocks that a prompt begins with, as far as they are known,
// and how many of its bytes that takes at most. They are not changed any more. What is
// found is of use, and forgotten later.
func (n *Names) Find(c *Chain) (names []kvindex.Key, bytes int) {
	is, bytes := n.longest(c)
	if is.of == nil {
		return nil, 0
	}
	n.oldest.MoveToFront(is.of.element)
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
	own := &told{names: names, density: float64(tokens) / float64(max(c.total, 1))}
	own.element = n.oldest.PushFront(own)
	n.size += len(names)
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
	for n.size > n.most {
		n.forget()
	}
}

// blocksIn is how many blocks so many bytes may reach into: a token has at least one.
func blocksIn(bytes, blockSize int) int { return (bytes + blockSize - 1) / blockSize }

// inCommon is how many keys two prompts begin with. A key stands for all before it, too.
func inCommon[K Key | kvindex.Key](a, b []K) int {
	return sort.Search(min(len(a), len(b)), func(i int) bool { return a[i] != b[i] })
}

// forget forgets the prompt that was of use the longest time ago.
func (n *Names) forget() {
	last, _ := n.oldest.Back().Value.(*told)
	n.oldest.Remove(last.element)
	n.size -= len(last.names)
	for _, key := range last.borders {
		if n.at[key].of == last {
			delete(n.at, key)
		}
	}
}
