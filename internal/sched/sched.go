// Package sched picks instances from a snapshot of the membership, and counts the legs in flight.
//
//	snapshot (and the previous index) ──▶ index: candidates per role and model
//	Pick: candidates → filter (tried, pair, state, health) → policy → Assignment
//	Assignment.Done: removes the leg from the counts, once
package sched

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/forward/bypass"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/kvcache/indexmem"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
)

// Errors of Scheduler.Pick.
var (
	// ErrUnknownModel: no instance, usable or not, lists the model.
	ErrUnknownModel = errors.New("no instance serves this model")
	// ErrNone: the role has no instance left that may be tried.
	ErrNone = errors.New("no instance available")
	// ErrModelAbsent: the model is known, but no usable instance of the role lists it. A prefill also fails
	// if only other models have usable decode instances.
	ErrModelAbsent = fmt.Errorf("%w: no usable instance serves this model", ErrNone)
	// ErrVersions: the remaining instances are of another build than their partners. This error
	// and all below wrap ErrNone.
	ErrVersions = fmt.Errorf("%w: the remaining instances run another vLLM version than their partners", ErrNone)
	// ErrConnectors: the remaining instances use another connector than their partners.
	ErrConnectors = fmt.Errorf("%w: the remaining instances have another connector than their partners", ErrNone)
	// ErrBlocks: the remaining instances have KV blocks of another size than their partners.
	ErrBlocks = fmt.Errorf("%w: the remaining instances have KV blocks of another size than their partners", ErrNone)
	// ErrSelf: the remaining instance could only be paired with itself.
	ErrSelf = fmt.Errorf("%w: the only remaining instance would be paired with itself", ErrNone)
	// ErrMembershipUnread: there is no instance because the membership was never read.
	ErrMembershipUnread = fmt.Errorf("%w: the membership has not been read yet", ErrNone)
)

// PolicyTaken is the Policy of an Assignment that no policy has chosen.
const PolicyTaken = "taken"

// Health reports the health of instances as this proxy sees it. It is called at every pick, and
// must not block.
type Health interface {
	// Troubled returns the instances with strikes or an ejection; the other methods are called
	// for these only. The list is immutable, and may have keys of former members.
	Troubled() []instance.Key
	// Available reports whether an instance is neither ejected nor suspended.
	Available(k instance.Key) bool
	// Failing reports whether an instance is ejected only for this model.
	Failing(k instance.Key, model string) bool
	// Unreachable reports whether an instance is ejected because no connection to it succeeds, it makes no
	// progress, or it fails trial requests.
	Unreachable(k instance.Key) bool
	// SilentFor returns the time for which the instance has not responded, 0 if it responds. A
	// silent and unreachable instance may still answer.
	SilentFor(k instance.Key) time.Duration
	// Share returns the fraction of its usual picks that an instance should get, at most 1. It is 0 if the
	// engine is suspended: the instance is then not picked.
	Share(k instance.Key) float64
}

// Options configure a Scheduler.
type Options struct {
	Source instance.Source
	Health Health
	// PairKey returns which instances an instance can be paired with; its Connector is "" if the proxy does
	// not support that of the instance.
	PairKey func(*instance.Instance) connector.PairKey
	// Silent is called for instances that keep legs waiting; may be nil.
	Silent func(*instance.Instance)
	// SilentAfter is the time after which an instance counts as silent if it keeps a leg waiting
	// and shows no other progress. Default 1 s.
	SilentAfter time.Duration
	// PrefillOptional reports whether decode instances compute prompts when there are no prefill
	// instances: then no request waits for a silent or slow prefill instance.
	PrefillOptional bool
	// Policies has the policy of each role. Default policy.Default.
	Policies map[instance.Role]policy.Kind
	// NoBinding disables policy.Session, which otherwise is tried first for requests with a
	// session.
	NoBinding bool
	// Zone is the zone of this proxy: instances with the same label zone are preferred. If it is empty, those
	// in the zone of the partner are preferred.
	Zone string
	// Options apply to all policies. Start should differ between proxies, so that they do not pick the same
	// instances at the same time. Rand defaults to math/rand/v2.Float64.
	policy.Options
}

// Scheduler picks instances. It is safe for concurrent use. Its exported fields are for
// callers that need only one of its parts.
type Scheduler struct {
	// Loads has the load of the engines.
	Loads *Loads
	// Legs supervises waiting legs; its Run must be called.
	Legs *Legs
	// Tally counts picks.
	Tally *Tally

	opts   *Options
	index  *indexer
	filter *filter
	ratios ratios
	scores [2]func(instance.Role, int) int64 // see policy.Kind
}

// New returns a Scheduler.
func New(o Options) *Scheduler {
	if o.SilentAfter <= 0 {
		o.SilentAfter = time.Second
	}
	if o.Rand == nil {
		o.Rand = rand.Float64
	}
	if o.Budget == nil {
		o.Budget = indexmem.New(0)
	}
	loads, chains := &Loads{}, map[instance.Role][]policy.Kind{}
	for _, role := range instance.Roles() {
		chains[role] = policy.Chain(o.Policies[role], !o.NoBinding)
	}
	ix := &indexer{opts: &o, loads: loads, chains: chains}
	s := &Scheduler{
		Loads: loads, Legs: &Legs{opts: &o, loads: loads, index: ix}, Tally: newTally(chains),
		opts: &o, index: ix, filter: &filter{opts: &o, loads: loads, scratches: sync.Pool{New: func() any { return new(scratch) }}},
	}
	for _, role := range instance.Roles() {
		s.scores[role.Index()] = o.Policies[role].Score
	}
	return s
}

// Pick chooses an instance. It takes no lock and does no I/O, unless the membership has changed since the
// last pick or the policy needs a lock.
//
// A pick is counted before the membership is read again. So once an instance has left the membership and has
// nothing in flight, no further leg starts there, even if this process is suspended between any two lines.
// pdctl drain --wait depends on this.
func (s *Scheduler) Pick(r Request) (*Assignment, error) {
	for ix := s.index.current(); ; ix = s.index.newest() {
		a, err := s.pick(ix, r)
		if err != nil {
			return nil, err
		}
		if s.stillPickable(ix, a) {
			if !r.Tentative {
				a.Confirm()
			}
			return a, nil
		}
		a.Done()
	}
}

// stillPickable reports whether the newest membership allows the pick with the same incarnation, and whether
// the pick's counter is still in use. If the instance has left and returned since ix was built, its former
// counter may have been dropped, and drain proofs would not find the pick there. A counter loses its entry
// before it can be dropped, and it is not dropped while it has legs in flight. So if the entry is present
// after the pick was counted, the counter is in use.
func (s *Scheduler) stillPickable(ix *index, a *Assignment) bool {
	snap := s.opts.Source.Snapshot()
	if snap == ix.snapshot {
		return true
	}
	in, ok := snap.Lookup(a.Instance.Key)
	return ok && in.Incarnation() == a.Instance.Incarnation() && (in.Usable() || in.Slow()) && a.counter.entry(a.Instance.Role).Load() != nil
}

func (s *Scheduler) pick(ix *index, r Request) (*Assignment, error) {
	list, known := ix.candidates(r.Role, r.Model)
	if !known {
		return nil, ErrUnknownModel
	}
	if ix.lacksDecode(&r) {
		return nil, ErrModelAbsent
	}
	among, l := s.filter.admitted(ix, list, &r)
	among, l, elsewhere := s.filter.preferZone(list, among, &r, l)
	var a *Assignment
	if among.Len() > 0 {
		a = s.assign(list, among, elsewhere, &r)
		a.Revision = ix.snapshot.Revision
	}
	if l != nil {
		s.filter.scratches.Put(l)
	}
	if a == nil {
		return nil, ix.noneReason(list, &r)
	}
	return a, nil
}

// lacksDecode reports whether the model of a prefill has no usable decode instance, although other models
// have one.
func (ix *index) lacksDecode(r *Request) bool {
	if r.Role != instance.Prefill || r.Model == "" || r.Unpaired || r.Partner != nil {
		return false
	}
	decodes := ix.decode.byModel[r.Model]
	return decodes != nil && len(decodes.items) == 0 && len(ix.decode.all.items) > 0
}

// noneReason returns the error of a pick for which no candidate of the list is left.
func (ix *index) noneReason(list *candidates, r *Request) error {
	if ix.snapshot.Revision == 0 && len(ix.snapshot.All()) == 0 {
		return ErrMembershipUnread
	}
	switch ix.noPairReason(list, r) {
	case bypass.VersionMismatch:
		return ErrVersions
	case bypass.BlockMismatch:
		return ErrBlocks
	case bypass.ConnectorMismatch:
		return ErrConnectors
	case bypass.SameInstance:
		return ErrSelf
	}
	if len(list.items) == 0 && list != ix.role(r.Role).all {
		return ErrModelAbsent
	}
	return ErrNone
}

// Serves reports whether a usable instance serves the model: a decode instance, or a prefill instance if
// there is no usable decode instance.
func (s *Scheduler) Serves(model string) bool {
	ix := s.index.current()
	role := instance.Decode
	if len(ix.decode.all.items) == 0 {
		role = instance.Prefill
	}
	list, known := ix.candidates(role, model)
	return known && len(list.items) > 0
}

// CanServe reports whether an instance with these labels, neither slow nor ejected, serves the model: a
// decode instance, or a prefill instance if there is no usable decode instance.
func (s *Scheduler) CanServe(model string, labels instance.Selector) bool {
	ix := s.index.current()
	role := instance.Decode
	if len(ix.decode.all.items) == 0 {
		role = instance.Prefill
	}
	list := ix.role(role).byModel[model]
	for i := 0; list != nil && i < len(list.items); i++ {
		if in := list.items[i].Instance; !list.facts[i].slow && labels.Matches(in) && s.opts.Health.Available(in.Key) && !s.opts.Health.Failing(in.Key, model) {
			return true
		}
	}
	return false
}

// Lists reports whether any instance lists the model, usable or not.
func (s *Scheduler) Lists(model string) bool { return s.index.current().decode.byModel[model] != nil }

// Take returns an assignment of a given instance, for a request that no other instance can answer. Pick might
// return another one. Of several ranks, Take chooses the one with the fewest legs in flight.
func (s *Scheduler) Take(in *instance.Instance) (*Assignment, error) {
	for {
		revision := s.index.current().snapshot.Revision
		c, ok := s.Loads.counters.find(in.Address)
		if !ok {
			return nil, ErrNone // it has just left
		}
		rank, load := 0, &c.load
		for i, other := range s.Loads.counters.ranks(in.Address, in.Ranks()) {
			if other.InFlight.Load() < load.InFlight.Load() {
				rank, load = i+1, other
			}
		}
		a := &Assignment{
			Instance: in, Rank: rank, PairKey: connector.PairKey{Connector: s.opts.PairKey(in).Connector}, Policy: PolicyTaken, Revision: revision, counter: c, load: load,
		}
		a.begin()
		// The counter may have been dropped before the pick was counted on it.
		if now, ok := s.Loads.counters.find(in.Address); ok && now == c {
			return a, nil
		}
		a.Done()
	}
}

// Prepare builds the index of a snapshot that is about to be published, so that no request
// has to. The publisher calls it before the source returns the snapshot.
func (s *Scheduler) Prepare(snap *instance.Snapshot) { s.index.prepare(snap) }

// Removed is Legs.Removed.
func (s *Scheduler) Removed(a *Assignment) error { return s.Legs.Removed(a) }

// InFlight is Loads.InFlight.
func (s *Scheduler) InFlight(k instance.Key) int64 { return s.Loads.InFlight(k) }

// Members returns the current membership.
func (s *Scheduler) Members() *instance.Snapshot { return s.opts.Source.Snapshot() }

// features returns the parts of the request that policies use.
func (r *Request) features() policy.Request {
	return policy.Request{Role: r.Role, Model: r.Model, Session: r.Session, Prompt: r.Prompt, Head: r.Head}
}

// promptBytes returns the length of Prompt and Head in bytes.
func (r *Request) promptBytes() int {
	n := len(r.Prompt)
	for _, h := range r.Head {
		n += len(h)
	}
	return n
}

// choice is the candidate that a policy has chosen.
type choice struct {
	at     int    // position in the list
	by     string // name of the policy
	cached int    // tokens of the prompt that should be in its cache
}

// choose returns the choice of the policies of the list among the candidates, which are not empty.
func (c *candidates) choose(among policy.Candidates, r policy.Request) (by choice) {
	for i := range c.policies {
		p := &c.policies[i]
		if i, cached := p.Choose(among, r); i >= 0 {
			return choice{among.Index(i), p.Name, min(cached, r.Tokens)}
		}
	}
	return by // the last of the policies always chooses
}

// set stores the chosen candidate of the list in a.
func (a *Assignment) set(c *candidates, by choice, tokens int) {
	chosen, own := &c.items[by.at], &c.facts[by.at]
	a.Instance, a.Rank, a.PairKey = chosen.Instance, chosen.Rank, own.pairKey
	a.Policy, a.Tokens, a.Cached = by.by, tokens, by.cached
	a.counter, a.load = own.counter, chosen.Load
}

// measure sets Queued and Running.
func (a *Assignment) measure() {
	a.Queued = a.load.Waiting.Load() + int64(a.load.Others.Waiting.Load())
	a.Running = a.load.InFlight.Load() + int64(a.load.Others.InFlight.Load())
}

// assign assigns the request one of the candidates among, which are not empty.
func (s *Scheduler) assign(c *candidates, among policy.Candidates, zone string, r *Request) *Assignment {
	f, bytes, ratio := r.features(), r.promptBytes(), s.ratios.of(r.Model)
	f.Tokens = ratio.tokens(bytes)
	a := &Assignment{}
	f.Passed, f.Assigned = &a.passedOver, &a.assigned
	if r.TokensIdentifyCache && r.Role == instance.Prefill {
		f.Lesson = &a.Lesson
	}
	if r.Tentative {
		f.Tentative = &a.tentative
	}
	by := c.choose(among, f)
	own := &c.facts[by.at]
	a.counts[0], a.counts[4] = s.Tally.Picks.of(r.Role, by.by), &own.counter.hits.picks[r.Role.Index()]
	if own.both {
		a.counts[1] = s.Tally.Both.of(r.Role, bothReason(c, among))
	}
	if a.passedOver != nil || zone != "" {
		a.Elsewhere, a.counts[2] = elsewhereText(zone, a.passedOver), s.Tally.Elsewhere.of(r.Role, zone)
		if a.passedOver != nil {
			a.counts[3] = s.Tally.Elsewhere.of(r.Role, sessionOverloaded)
		}
		a.passedOver = nil
	}
	a.set(c, by, f.Tokens)
	a.bytes, a.pins = bytes, &s.Loads.pins
	if !r.Media {
		a.ratio = ratio
	}
	a.wanted = wanted{model: r.Model, labels: r.Labels, tried: r.Tried, unpaired: r.Unpaired, length: r.Length}
	if r.Measure {
		a.measure()
	}
	a.begin()
	if score := s.scores[r.Role.Index()]; score != nil {
		a.score = score(r.Role, r.Length)
		a.load.ScoreOf(r.Role).Add(a.score)
	}
	if r.Role == instance.Prefill || r.Partner == nil {
		a.waiting.Store(int64(f.Tokens - by.cached))
		a.load.Waiting.Add(int64(f.Tokens - by.cached))
	}
	if r.Partner != nil {
		a.wanted.partner = r.Partner.PairKey
	}
	return a
}

// Models returns the names of all models that instances list, usable or not, in the order
// of the instances. The caller must not change the slice.
func (s *Scheduler) Models() []string { return s.index.current().models }
