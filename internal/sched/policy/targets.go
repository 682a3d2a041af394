package policy

import (
	"time"

	"github.com/pdmesh/pdmesh/internal/kvcache/prefix"
)

// targets maps the candidates of a list to their numbers in a prefix.Index. A list is immutable; its
// successor has most of its candidates, too.
type targets struct {
	index *prefix.Index
	of    map[uint64]*numbered // by Candidate.Hash
	most  int                  // upper bound of the numbers, exclusive

	list  *Candidate // first element of the list that ready belongs to
	ready []int      // number of each candidate of the list
}

// numbered is a candidate of the list, or one that has left it.
type numbered struct {
	number      int
	incarnation string    // of the instance
	startedAt   time.Time // start of its engine, as last read by restarted
	here        bool
	left        time.Time
}

// restarted reports whether the engine of a candidate has another start time than at the last call. It is
// false for an engine with an id in its record: its restarts change the incarnation.
func (t *targets) restarted(c *Candidate) bool {
	e, n := c.Load.Engine.Load(), t.of[c.Hash]
	if e == nil || e.StartedAt.IsZero() || c.Instance.Record.ID != "" {
		return false
	}
	was := n.startedAt
	n.startedAt = e.StartedAt
	return !was.IsZero() && !was.Equal(e.StartedAt)
}

// remembered is how long the index of a candidate is kept after it has left the list. An instance that
// returns soon still has its cache.
const remembered = 10 * time.Minute

// numbers returns the number of every candidate of the list of c. changed reports whether the list
// differs from that of the last call.
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
		incarnation := one.Instance.Incarnation()
		switch {
		case n == nil:
			n = &numbered{number: t.index.Add()}
			t.of[one.Hash] = n
			t.most = max(t.most, n.number+1)
		case n.incarnation != incarnation:
			t.index.Clear(n.number) // another engine, whose cache is empty
		}
		n.incarnation, n.here = incarnation, true
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
