package policy

import (
	"time"

	"github.com/pdmesh/pdmesh/internal/prefix"
)

// targets are the numbers that the candidates of a list have in an index of prefixes. The
// list does not change; the next one shares most candidates with it.
type targets struct {
	index *prefix.Index
	of    map[uint64]*numbered // by Candidate.Hash
	most  int                  // all numbers are below

	list  *Candidate // the first of the list that ready is of
	ready []int      // number of each of the list
}

// numbered is a candidate, there or not.
type numbered struct {
	number int
	life   string // incarnation of the instance
	here   bool
	left   time.Time
}

// remembered is how long a candidate that is in no list keeps what is known of it: one
// that was out for a moment has its cache still.
const remembered = 10 * time.Minute

// numbers returns the number of every candidate of the list that c is of. changed tells
// that it is another list than last time.
func (t *targets) numbers(c *Candidates, now time.Time) (of []int, changed bool) {
	if t.list == &c.list[0] && len(t.ready) == len(c.list) {
		return t.ready, false
	}
	if t.of == nil {
		t.of = map[uint64]*numbered{}
	}
	for _, n := range t.of {
		if n.here {
			n.here, n.left = false, now
		}
	}
	t.list, t.ready = &c.list[0], t.ready[:0]
	for i := range c.list {
		one := &c.list[i]
		n := t.of[one.Hash]
		life := one.Instance.Incarnation()
		switch {
		case n == nil:
			n = &numbered{number: t.index.Add()}
			t.of[one.Hash] = n
			t.most = max(t.most, n.number+1)
		case n.life != life:
			t.index.Clear(n.number) // another engine, whose cache is empty
		}
		n.life, n.here = life, true
		t.ready = append(t.ready, n.number)
	}
	for hash, n := range t.of {
		if !n.here && now.Sub(n.left) > remembered {
			t.index.Remove(n.number)
			delete(t.of, hash)
		}
	}
	return t.ready, true
}
