// Package sched chooses instances: a pure choice over one snapshot, and the
// book of what is in flight.
//
//	snapshot ──index (once per snapshot)──▶ candidates per role and model
//	Pick: candidates → not tried, healthy, fitting its partner → policy → Assignment
//	Assignment.Done: counts back, exactly once
package sched

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// The reasons for which there may be no pick.
var (
	// ErrUnknownModel: no instance, usable or not, lists the model.
	ErrUnknownModel = errors.New("no instance serves this model")
	// ErrNone: the role has no instance left that may be tried.
	ErrNone = errors.New("no instance available")
)

// Source gives the current membership.
type Source interface {
	Snapshot() *instance.Snapshot
}

// Health is this proxy's opinion, asked at every pick: it must not block.
type Health interface {
	Available(k instance.Key) bool
}

// Options configure a Scheduler.
type Options struct {
	Source Source
	Health Health
	// Connector resolves the KV-transfer dialect of an instance, "" for one that
	// cannot be spoken to; instances of different dialects are never paired.
	Connector func(*instance.Instance) string
}

// Scheduler picks instances. It is safe for concurrent use.
type Scheduler struct {
	opts  Options
	index atomic.Pointer[index]
	// building keeps several requests from building the same index; readers
	// do not take it.
	building sync.Mutex
	counters counters
}

// New builds a Scheduler.
func New(o Options) *Scheduler { return &Scheduler{opts: o} }

// Request says what is wanted of one pick.
type Request struct {
	Role  instance.Role
	Model string
	// Partner is the other half of the pair, nil if it is not chosen yet or
	// there is none; its dialect must be the same.
	Partner *Assignment
	// Alone tells that a prefill instance needs no decode instance to go with it.
	Alone bool
	// Tried are the instances that this request must not get again.
	Tried []instance.Key
}

// Assignment is one pick. Done must be called when the leg has ended.
type Assignment struct {
	Instance *instance.Instance
	// Connector is the resolved dialect of the instance.
	Connector string
	// Revision of the snapshot that the choice was made from.
	Revision int64

	counter *counter
	done    atomic.Bool
}

// Done counts the pick back. Only the first call counts.
func (a *Assignment) Done() {
	if a != nil && a.done.CompareAndSwap(false, true) {
		a.counter.inFlight.Add(-1)
	}
}

// Pick chooses an instance. It takes no lock and does no I/O unless the
// membership changed since the last pick.
func (s *Scheduler) Pick(r Request) (*Assignment, error) {
	ix := s.current()
	list, known := ix.candidates(r.Role, r.Model)
	if !known {
		return nil, ErrUnknownModel
	}
	if c := s.choose(ix, list, &r, true); c != nil {
		return s.assign(ix, c), nil
	}
	// Everyone who could be tried is held to be away: better to try than to
	// refuse, the opinion may be older than the recovery.
	if c := s.choose(ix, list, &r, false); c != nil {
		return s.assign(ix, c), nil
	}
	return nil, ErrNone
}

// choose is round robin over those that fit. When the one in turn does not,
// the turn is dealt anew among all that do: handing it to the next in line
// would give a sick instance's whole share to its neighbour.
func (s *Scheduler) choose(ix *index, list *candidates, r *Request, healthy bool) *candidate {
	n := uint64(len(list.items))
	if n == 0 {
		return nil
	}
	ok := func(c *candidate) bool {
		return c.fits(ix, r) && (!healthy || s.opts.Health.Available(c.instance.Key))
	}
	turn := list.turn.Add(1) - 1
	if c := &list.items[turn%n]; ok(c) {
		return c
	}
	var fitting uint64
	for i := range list.items {
		if ok(&list.items[i]) {
			fitting++
		}
	}
	if fitting == 0 {
		return nil
	}
	want := (turn / n) % fitting
	for i := range list.items {
		if c := &list.items[i]; ok(c) {
			if want == 0 {
				return c
			}
			want--
		}
	}
	return nil // opinions changed between the two passes
}

func (s *Scheduler) assign(ix *index, c *candidate) *Assignment {
	c.counter.inFlight.Add(1)
	return &Assignment{Instance: c.instance, Connector: c.connector, Revision: ix.snapshot.Revision, counter: c.counter}
}

// InFlight tells what this proxy holds on an instance.
func (s *Scheduler) InFlight(k instance.Key) int64 {
	if c, ok := s.counters.find(k); ok {
		return c.inFlight.Load()
	}
	return 0
}

// Each calls f for every instance that is present or has something in flight.
func (s *Scheduler) Each(f func(k instance.Key, inFlight int64)) { s.counters.each(f) }

// Servable tells whether a request could be placed now: at least one usable
// instance in the role.
func (s *Scheduler) Servable(role instance.Role) bool {
	return len(s.opts.Source.Snapshot().Usable(role)) > 0
}

type counter struct{ inFlight atomic.Int64 }

// counters live beside the snapshots, so that a membership change loses no count.
type counters struct {
	mu sync.RWMutex // guards m; taken at index building and by readers of metrics, never by Pick
	m  map[instance.Key]*counter
}

func (c *counters) find(k instance.Key) (*counter, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	n, ok := c.m[k]
	return n, ok
}

func (c *counters) each(f func(instance.Key, int64)) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for k, n := range c.m {
		f(k, n.inFlight.Load())
	}
}

// keepFor makes sure that every instance has a counter and lets go of those of
// instances that are gone and idle.
func (c *counters) keepFor(s *instance.Snapshot) map[instance.Key]*counter {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := make(map[instance.Key]*counter, len(c.m))
	for k, n := range c.m {
		if n.inFlight.Load() != 0 {
			next[k] = n
		}
	}
	for _, in := range s.All() {
		if in.View == instance.Pending {
			continue
		}
		if n := c.m[in.Key]; n != nil {
			next[in.Key] = n
		} else if next[in.Key] == nil {
			next[in.Key] = new(counter)
		}
	}
	c.m = next
	return next
}
