package sched

import (
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// index is what one snapshot means for picking. Its lists are built once
// when the membership changed, and never change afterwards. What a change of
// the membership does not concern is shared with the index before.
type index struct {
	snapshot        *instance.Snapshot
	prefill, decode *roleIndex
}

func (ix *index) role(r instance.Role) *roleIndex {
	if r == instance.Prefill {
		return ix.prefill
	}
	return ix.decode
}

type roleIndex struct {
	all *candidates // whoever serves anything: requests that name no model

	byModel map[string]*candidates
	// dialects counts the candidates that speak each.
	dialects map[string]int
	// only is the one dialect that all of them speak, "" if there are more, or none.
	only string
}

// speaks tells whether a candidate speaks that dialect.
func (ri *roleIndex) speaks(dialect string) bool {
	return ri.only == dialect && dialect != "" || ri.dialects[dialect] > 0
}

// candidates are in the order of snapshots, each once.
type candidates struct {
	items []candidate
	turn  *atomic.Uint64
	// shift is what became of the stretches' places by changes of the list, less
	// than its length.
	shift uint64
	slow  int // how many of the items are slow
}

// A list of more than four stretches is gone through a stretch at a time, that
// many rounds each. One that was used a moment ago costs less: its connection
// is open (engines close idle ones after 5 s, and among 1,000 instances in turn
// the next leg may come later than that), and all that is kept of it is at hand.
// With few requests that is not so for long: then a stretch ends after a while.
const (
	stretch = 32
	rounds  = 64
	while   = 4 * time.Second
)

// inTurn is whose turn it is. In a long list it is the next of the stretch of
// which nothing of this proxy's is in flight, as far as it is soon found; else the
// next of all, so that legs which last long are spread as if there were no
// stretches. In the end everybody has had as many turns. round is another one each
// time that the same comes, to deal its turn by if it may not be picked.
func (s *Scheduler) inTurn(c *candidates, turn uint64) (is *candidate, round uint64) {
	n := uint64(len(c.items))
	if n <= 4*stretch {
		return &c.items[turn%n], turn / n
	}
	begin := stretchOf(s.from+s.passed(), turn) + c.shift
	round = scattered(turn / stretch)
	for i := range uint64(stretch / 2) {
		if near := &c.items[(begin+(turn+i)%stretch)%n]; near.counter.inFlight.Load() == 0 {
			return near, round
		}
	}
	return &c.items[turn%n], round
}

// passed is how far stretches have got for the sake of time.
func (s *Scheduler) passed() uint64 { return uint64(s.opts.Clock()/while) * stretch }

// stretchOf is where the stretch of a turn begins, in a list that never changed
// and goes on from its beginning for ever.
func stretchOf(from, turn uint64) uint64 { return from + turn/(stretch*rounds)*stretch }

// with gives the list with other items, in the round robin where this one stands:
// a change of the membership does not send everything to the first instance again.
// The stretch begins at the same instance, or the one behind it: in a list of
// another length its number would mean another place, with all that is kept of the
// instances there out of use for long. from is that of stretchOf.
func (c *candidates) with(items []candidate, from uint64) *candidates {
	next := &candidates{items: items, turn: c.turn}
	for i := range items {
		if items[i].slow {
			next.slow++
		}
	}
	was, is := uint64(len(c.items)), uint64(len(items))
	if was == 0 || is == 0 {
		return next
	}
	begin := stretchOf(from, c.turn.Load())
	at, _ := place(items, c.items[(begin+c.shift)%was].instance.Address)
	next.shift = (uint64(at) + is - begin%is) % is
	return next
}

// place is where an address stands in a list, or would.
func place(items []candidate, address string) (at int, found bool) {
	return slices.BinarySearchFunc(items, address, func(c candidate, a string) int { return strings.Compare(c.instance.Address, a) })
}

// scattered makes numbers that follow each other, or come at even distances, such
// that do neither (a multiplication by 2^64 divided by the golden ratio).
func scattered(n uint64) uint64 { return n * 0x9e37_79b9_7f4a_7c15 >> 32 }

type candidate struct {
	instance  *instance.Instance
	connector string
	counter   *counter
	slow      bool // see instance.Slow: picked only while no other can be
}

// fits tells whether the request may have this instance: not tried before,
// and of one dialect with its partner, or with somebody who can become it.
func (c *candidate) fits(ix *index, r *Request) bool {
	switch {
	case slices.Contains(r.Tried, c.instance.Key):
		return false
	case r.Partner != nil:
		return c.connector == r.Partner.Connector
	case r.Role == instance.Prefill && !r.Alone:
		return ix.decode.speaks(c.connector)
	default:
		return true
	}
}

// allFit tells that every candidate of the role fits the request, if that is
// plain to see: it has tried nobody, and there is but one dialect, or no partner.
func (ix *index) allFit(r *Request) bool {
	dialects := ix.role(r.Role).dialects
	switch {
	case len(r.Tried) > 0:
		return false
	case r.Partner != nil:
		return len(dialects) == 1 && dialects[r.Partner.Connector] > 0
	case r.Role == instance.Prefill && !r.Alone:
		if len(dialects) != 1 {
			return false
		}
		for d := range dialects {
			return ix.decode.dialects[d] > 0
		}
	}
	return true
}

// has tells whether a key of the list's role is in it.
func (c *candidates) has(k instance.Key) bool {
	_, found := place(c.items, k.Address)
	return found
}

func (s *Scheduler) current() *index {
	snap := s.opts.Source.Snapshot()
	old := s.index.Load()
	if old != nil && old.snapshot == snap {
		return old
	}
	if next := s.next.Load(); next != nil && next.snapshot == snap && s.index.CompareAndSwap(old, next) {
		return next
	}
	// Nobody has prepared it. One request builds the new index; the others go on with the old one, a
	// few milliseconds behind at worst, rather than wait for it.
	if old != nil && !s.building.TryLock() {
		return old
	} else if old == nil {
		s.building.Lock()
	}
	defer s.building.Unlock()
	old = s.index.Load()
	if snap = s.opts.Source.Snapshot(); old != nil && old.snapshot == snap {
		return old
	}
	ix := s.build(snap)
	s.index.Store(ix)
	return ix
}

// Prepare builds what picks need of a snapshot that is about to be published,
// so that no request has to. It is called before the source gives the snapshot
// out, by whoever publishes it.
func (s *Scheduler) Prepare(snap *instance.Snapshot) {
	s.building.Lock()
	defer s.building.Unlock()
	// What was prepared last may not have been picked from yet.
	if next := s.next.Load(); next != nil && next.snapshot == s.opts.Source.Snapshot() {
		s.index.Store(next)
	}
	s.next.Store(s.build(snap))
}

// candidates finds the list for a model; known is false for a model that
// nobody lists.
func (ix *index) candidates(role instance.Role, model string) (list *candidates, known bool) {
	ri := ix.role(role)
	if model == "" {
		return ri.all, true
	}
	if list = ri.byModel[model]; list != nil {
		return list, true
	}
	// Before anything is known, nothing is unknown.
	return ri.all, len(ix.snapshot.All()) == 0
}
