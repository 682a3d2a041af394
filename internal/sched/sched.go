// Package sched chooses instances: a pure choice over one snapshot, and the
// book of what is in flight.
//
//	snapshot ──index (of the one before)──▶ candidates per role and model
//	Pick: candidates → not tried, healthy, fitting its partner → policy → Assignment
//	Assignment.Done: counts back, exactly once
package sched

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// The reasons for which there may be no pick.
var (
	// ErrUnknownModel: no instance, usable or not, lists the model.
	ErrUnknownModel = errors.New("no instance serves this model")
	// ErrNone: the role has no instance left that may be tried.
	ErrNone = errors.New("no instance available")
	// ErrUnread: that is so because the membership was never read. It wraps ErrNone.
	ErrUnread = fmt.Errorf("%w: the membership has not been read yet", ErrNone)
)

// Source gives the current membership.
type Source interface {
	Snapshot() *instance.Snapshot
}

// Health is this proxy's opinion, asked at every pick: it must not block.
type Health interface {
	// Troubled lists those against whom anything is held; if that is nobody,
	// nothing else is asked. The list is not changed any more, and a key may
	// stand in it that is no member.
	Troubled() []instance.Key
	// Available: it is not ejected.
	Available(k instance.Key) bool
	// Unreachable: it is ejected because nobody could connect to it.
	Unreachable(k instance.Key) bool
	// SilentFor is how long it has given no sign of life, 0 if it gives some. One
	// that is silent and unreachable may still answer.
	SilentFor(k instance.Key) time.Duration
	// Share of its turns that it should take, from above 0 to 1.
	Share(k instance.Key) float64
}

// Options configure a Scheduler.
type Options struct {
	Source Source
	Health Health
	// Connector resolves the KV-transfer dialect of an instance, "" for one that
	// cannot be spoken to; instances of different dialects are never paired.
	Connector func(*instance.Instance) string
	// Silent is told of instances that keep legs waiting; nil: nobody is.
	Silent func(*instance.Instance)
	// SilentAfter is how long an instance may keep a leg waiting, and give no other
	// sign of life, before it is called silent. Default 1 s.
	SilentAfter time.Duration
	// PrefillOptional tells that decode instances do the work of prefill instances
	// when there are none: then a silent or slow one is no last resort.
	PrefillOptional bool
	// Attach makes what others keep of an instance, so that they have it at hand
	// with every pick; nil: nothing. It is made when a key becomes a member and
	// stays until the key is gone and idle, whatever entries it has meanwhile.
	Attach func(instance.Key) any
	// Clock gives the time since some moment in the past; default since New.
	Clock func() time.Duration
	// Rand gives numbers from 0 up to 1; default math/rand.
	Rand func() float64
}

// Scheduler picks instances. It is safe for concurrent use.
type Scheduler struct {
	opts  Options
	index atomic.Pointer[index]
	next  atomic.Pointer[index] // prepared, perhaps for a snapshot that is not out yet
	// building keeps several requests from building the same index; nobody
	// waits for it but the first requests of all.
	building sync.Mutex
	last     *index         // built last; guarded by building
	models   map[string]int // entries of last that list each model; guarded by building
	counters counters
	// from is where the stretches of long lists begin: elsewhere in each proxy,
	// so that they do not all go to the same instances.
	from uint64
}

// New builds a Scheduler.
func New(o Options) *Scheduler {
	if o.SilentAfter <= 0 {
		o.SilentAfter = time.Second
	}
	if o.Rand == nil {
		o.Rand = rand.Float64
	}
	if o.Clock == nil {
		begun := time.Now()
		o.Clock = func() time.Duration { return time.Since(begun) }
	}
	return &Scheduler{opts: o, counters: counters{attach: o.Attach}, from: uint64(rand.Uint32())}
}

// Request says what is wanted of one pick.
type Request struct {
	Role  instance.Role
	Model string
	// Partner is the other half of the pair, nil if it is not chosen yet or
	// there is none; its dialect must be the same.
	Partner *Assignment
	// Alone tells that a prefill instance needs no decode instance to go with it.
	Alone bool
	// Session binds the request to the instance that this session has, as long
	// as that may be picked; "" binds it to none.
	Session string
	// Tried are the instances that this request must not get again.
	Tried []instance.Key
	// Now is when the caller last looked at the clock, if that was a moment ago: for
	// whoever stands before the scheduler and has to know the time.
	Now time.Time
	// Into, if not nil, is where the pick is put: memory of the caller's, who
	// may use it again after Done, and after a Settle that tells so.
	Into *Assignment
}

// Assignment is one pick. Done must be called when the leg has ended.
type Assignment struct {
	Instance *instance.Instance
	// Connector is the resolved dialect of the instance.
	Connector string
	// Revision of the snapshot that the choice was made from.
	Revision int64
	// Policy that chose.
	Policy string
	// Rank is the data-parallel rank that was chosen.
	Rank int

	counter *counter
	wish    wish // what else would do
	wait    wait // guarded by counter.waiting.mu
	listed  bool // the same: somebody has, or had, the leg in a list of waiting ones
	done    atomic.Bool
}

// Heard notes a sign of life of the instance: bytes of an answer.
func (a *Assignment) Heard() { a.counter.heard.Add(1) }

// Attached is what Options.Attach made for the instance, nil if there is none.
func (a *Assignment) Attached() any { return a.counter.attached }

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
	if c := s.choose(ix, list, &r); c != nil {
		return s.assign(ix, c, &r), nil
	}
	// Opinions change while they are asked for. Whoever was in may be out by the
	// second look, so that nobody seems to be left; then anybody who fits will do.
	for i := range list.items {
		if c := &list.items[i]; s.lastResort(ix, c, &r) {
			return s.assign(ix, c, &r), nil
		}
	}
	if ix.snapshot.Revision == 0 && len(ix.snapshot.All()) == 0 {
		return nil, ErrUnread
	}
	return nil, ErrNone
}

// choose is round robin over those that may be picked now, a stretch at a time
// in a long list (inTurn). When the one in turn may not, the turn is dealt anew
// among all that may: handing it to the next in line would give a sick
// instance's whole share to its neighbour.
func (s *Scheduler) choose(ix *index, list *candidates, r *Request) *candidate {
	n := uint64(len(list.items))
	if n == 0 {
		return nil
	}
	if r.Session != "" {
		return s.bound(ix, list, *r)
	}
	turn := list.turn.Add(1) - 1
	first, round := s.inTurn(list, turn)
	troubled := s.opts.Health.Troubled()
	if len(troubled) == 0 && list.slow == 0 && first.fits(ix, r) {
		return first
	}
	return s.redeal(ix, list, *r, first, round, troubled)
}

// redeal is choose when the one in turn may not be it. It takes the request by
// value so that the usual pick need not have it on the heap.
func (s *Scheduler) redeal(ix *index, list *candidates, r Request, first *candidate, turn uint64, troubled []instance.Key) *candidate {
	var allowed func(*candidate) bool
	if len(troubled) > 0 || list.slow > 0 {
		allowed = s.admission(ix, list, &r, troubled)
		if allowed(first) && s.takesTurn(first) {
			return first
		}
	} else {
		allowed = func(c *candidate) bool { return c.fits(ix, &r) }
	}
	return deal(list, turn, func(c *candidate) bool { return c != first && allowed(c) }, func() *candidate {
		if allowed(first) {
			return first // starting slowly, but there is nobody else
		}
		return nil
	})
}

// deal gives the turn-th of those that may, or what otherwise says.
func deal(list *candidates, turn uint64, may func(*candidate) bool, otherwise func() *candidate) *candidate {
	var n uint64
	for i := range list.items {
		if may(&list.items[i]) {
			n++
		}
	}
	if n == 0 {
		return otherwise()
	}
	want := turn % n
	for i := range list.items {
		if c := &list.items[i]; may(c) {
			if want == 0 {
				return c
			}
			want--
		}
	}
	return otherwise() // opinions changed between the two passes
}

// admission decides who may be picked while somebody is in trouble. Usually
// that is who is in. When more than half of those that can be reached are out,
// the opinion is likelier wrong than they are: all of them may be picked. And
// when nobody can be reached everybody may: better to try than to refuse, the
// opinion may be older than the recovery.
func (s *Scheduler) admission(ix *index, list *candidates, r *Request, troubled []instance.Key) func(*candidate) bool {
	reachable, in := s.condition(ix, list, r, troubled)
	switch {
	case reachable == 0:
		return func(c *candidate) bool { return s.lastResort(ix, c, r) }
	case in*2 < reachable:
		return func(c *candidate) bool { return c.fits(ix, r) && !c.slow && !s.opts.Health.Unreachable(c.instance.Key) }
	default:
		return func(c *candidate) bool { return c.fits(ix, r) && !c.slow && s.opts.Health.Available(c.instance.Key) }
	}
}

// lastResort tells whether an instance may be picked when nobody can be reached.
// Everybody who fits may be, also one that is silent: it may answer yet. But where
// a decode instance would do, nobody waits for a silent prefill instance.
func (s *Scheduler) lastResort(ix *index, c *candidate, r *Request) bool {
	if !c.fits(ix, r) {
		return false
	}
	optional := s.opts.PrefillOptional && r.Role == instance.Prefill && !r.Alone
	return !optional || !c.slow && s.opts.Health.SilentFor(c.instance.Key) == 0
}

// condition counts those of the fitting ones that can be reached, and of these
// the ones that are in. While few among many are in trouble only these are
// looked at: what is known of all others would have to be fetched from memory.
func (s *Scheduler) condition(ix *index, list *candidates, r *Request, troubled []instance.Key) (reachable, in int) {
	if len(troubled) < len(list.items)/fewTroubled && list.slow == 0 && ix.allFit(r) {
		reachable, in = len(list.items), len(list.items)
		for _, k := range troubled {
			if k.Role != r.Role || !list.has(k) {
				continue
			}
			switch {
			case s.opts.Health.Unreachable(k):
				reachable--
				in--
			case !s.opts.Health.Available(k):
				in--
			}
		}
		return reachable, in
	}
	for i := range list.items {
		c := &list.items[i]
		if c.fits(ix, r) && !c.slow && !s.opts.Health.Unreachable(c.instance.Key) {
			reachable++
			if s.opts.Health.Available(c.instance.Key) {
				in++
			}
		}
	}
	return reachable, in
}

// fewTroubled is what part of a list may be in trouble at most for looking them
// up one by one, which takes a search of the list each.
const fewTroubled = 8

// takesTurn lets an instance that starts slowly pass on some of its turns.
func (s *Scheduler) takesTurn(c *candidate) bool {
	share := s.opts.Health.Share(c.instance.Key)
	return share >= 1 || s.opts.Rand() < share
}

func (s *Scheduler) assign(ix *index, c *candidate, r *Request) *Assignment {
	c.counter.inFlight.Add(1)
	a := r.Into
	if a == nil {
		a = new(Assignment)
	}
	*a = Assignment{
		Instance: c.instance, Connector: c.connector, Revision: ix.snapshot.Revision, counter: c.counter,
		wish: wish{model: r.Model, tried: r.Tried, alone: r.Alone},
	}
	a.Policy = "round_robin"
	if r.Session != "" {
		a.Policy = "session"
	}
	if r.Partner != nil {
		a.wish.partner = r.Partner.Connector
	}
	return a
}

// Heard counts the signs of life that legs saw of an instance.
func (s *Scheduler) Heard(k instance.Key) uint64 {
	if c, ok := s.counters.find(k); ok {
		return c.heard.Load()
	}
	return 0
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

// Models lists the names of all models that instances list, usable or not, in the order
// of the instances.
func (s *Scheduler) Models() []string {
	var names []string
	seen := map[string]bool{}
	for _, in := range s.opts.Source.Snapshot().All() {
		for _, m := range in.Record.Models {
			if !seen[m] {
				seen[m] = true
				names = append(names, m)
			}
		}
	}
	return names
}
