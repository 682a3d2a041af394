// Package ratio follows the load of each role of the fleet and publishes advice about the number of its
// instances. With --auto-roles on, it changes the roles of engines that are registered in both.
package ratio

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/cli/sleep"
	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/proxy/config"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/internal/sched/estimate"
	"github.com/pdmesh/pdmesh/internal/sched/roles"
)

// Options configure a Follower.
type Options struct {
	Mode     string // of --auto-roles
	Targets  roles.Targets
	Snapshot func() *instance.Snapshot
	Load     func(instance.Key) (sched.Total, bool)
	// Rates returns the known speed of a model's engines.
	Rates func(model, address string) estimate.Rates
	// Queues returns the queues of this proxy, and Elsewhere the tokens of the prompts that wait in
	// other proxies, by model.
	Queues    func() []instance.ListedQueue
	Elsewhere func() map[string]float64
	Intents   *store.Intents
	// Stale returns why the membership or the load of other proxies may be out of date, "" if not.
	Stale func() string
	// View returns why this proxy does not pick an instance, such as ejected, or "". Such an engine neither
	// counts nor moves, although it has the fewest requests.
	View func(instance.Key) instance.View
	Fits func(instance.Key, instance.Record) error
	Log  logrus.FieldLogger
}

// Follower computes the advice. It is created by New.
type Follower struct {
	o       Options
	demands map[string]*roles.Demand
	refused map[string]int64     // requests refused until the last tick, by model
	skipped map[string]time.Time // end of the pause after a refused change, by address of the engine
	auto    roles.Automatic
	move    *int64    // revision of the last change of a role; nil: unknown
	polled  time.Time // last successful poll of move
	// blind has the time since which a proxy publishes no load digest, by its id, as of the last poll.
	blind  map[string]time.Time
	advice atomic.Pointer[[]instance.Advice]
	moves  [2]map[string]*atomic.Int64 // by role and result
}

// The results of automatic changes.
const (
	Moved   = "moved"
	Advised = "advised" // --auto-roles advise: it would have been made
	Failed  = "failed"  // refused, or etcd did not answer
)

// New returns a Follower.
func New(o Options) *Follower {
	f := &Follower{o: o, demands: map[string]*roles.Demand{}, skipped: map[string]time.Time{}}
	for i := range f.moves {
		f.moves[i] = map[string]*atomic.Int64{Moved: {}, Advised: {}, Failed: {}}
	}
	f.advice.Store(&[]instance.Advice{})
	return f
}

// Advice returns the advice for each model and role, ordered by model.
func (f *Follower) Advice() []instance.Advice { return *f.advice.Load() }

// Moves calls emit for the number of automatic changes to each role, by result.
func (f *Follower) Moves(emit func(role instance.Role, result string, n int64)) {
	for i, role := range instance.Roles() {
		for result, n := range f.moves[i] {
			emit(role, result, n.Load())
		}
	}
}

// Run computes the advice, and changes roles, until ctx ends.
func (f *Follower) Run(ctx context.Context) {
	sleep.Every(ctx, time.Second, func(now time.Time) { f.Step(ctx, now) })
}

// Step does the work of one tick. It must not be called concurrently.
func (f *Follower) Step(ctx context.Context, now time.Time) {
	groups := f.loads()
	var all []*roles.Demand
	var advice []instance.Advice
	for _, g := range groups {
		d := f.demands[g.model]
		if d == nil {
			d = &roles.Demand{Model: g.model}
			f.demands[g.model] = d
		}
		d.Add(now, g.load, g.rates, f.o.Targets)
		all = append(all, d)
		for _, role := range instance.Roles() {
			advice = append(advice, d.Advise(role))
		}
	}
	maps.DeleteFunc(f.demands, func(model string, _ *roles.Demand) bool {
		return !slices.ContainsFunc(groups, func(g *group) bool { return g.model == model })
	})
	f.advice.Store(&advice)
	if f.o.Mode != config.AutoRolesOff {
		f.change(ctx, now, all)
	}
}

// pollMove is the interval between reads of the last role change, pollLimit the limit of one read.
const (
	pollMove  = 5 * time.Second
	pollLimit = 2 * time.Second
	// skip is the time for which an engine is left out after a refused change, so that others are tried.
	skip = 10 * time.Minute
)

// change changes the role of one engine, if auto decides so.
func (f *Follower) change(ctx context.Context, now time.Time, all []*roles.Demand) {
	if stale := f.o.Stale(); stale != "" {
		f.auto.Reset()
		return
	}
	if now.Sub(f.polled) >= pollMove {
		pctx, cancel := context.WithTimeout(ctx, pollLimit)
		is, err := f.o.Intents.LastMove(pctx)
		without, digestErr := f.o.Intents.Undigested(pctx)
		cancel()
		if err != nil || digestErr != nil {
			f.auto.Reset()
			return
		}
		if f.polled = now; f.move == nil || *f.move != is {
			f.move = &is
			f.auto.Moved(now) // local time of the poll: clocks are not compared
		}
		blind := map[string]time.Time{}
		for _, id := range without {
			if blind[id] = now; !f.blind[id].IsZero() {
				blind[id] = f.blind[id]
			}
		}
		f.blind = blind
	}
	for _, since := range f.blind {
		if now.Sub(since) >= pollMove { // the known load is incomplete; a starting proxy has pollMove to publish
			f.auto.Reset()
			return
		}
	}
	m, ok := f.auto.Decide(now, all, f.engines(now))
	if !ok {
		return
	}
	role := m.Role
	if m.Both {
		role = instance.Both
	}
	log := f.o.Log.WithFields(logrus.Fields{"instance": m.Address, "role": role, "model": instance.Printable(m.Model, 120), "reason": m.Reason})
	f.auto.Moved(now)
	if f.o.Mode == config.AutoRolesAdvise {
		f.count(m.Role, Advised)
		log.Info("role change advised")
		return
	}
	done, err := f.o.Intents.SetRole(ctx, m.Address, role, store.IntentOptions{Reason: m.Reason, Auto: true, Since: f.move, Fits: f.o.Fits})
	switch {
	case errors.Is(err, store.ErrMoved): // by another proxy or an operator
		f.polled = time.Time{}
		log.Debug("role not changed: another role changed first")
	case err != nil || !done.Changed:
		f.count(m.Role, Failed)
		if errors.Is(err, store.ErrIntent) {
			f.skipped[m.Address] = now.Add(skip)
		}
		log.WithField("error", err).Warn("role not changed")
	default:
		f.count(m.Role, Moved)
		f.polled = time.Time{}
		log.Info("role changed")
	}
}

func (f *Follower) count(role instance.Role, result string) {
	f.moves[slices.Index(instance.Roles(), role)][result].Add(1)
}

// engines returns the engines in both roles without an operator's intent, except those in skipped and
// those that this proxy does not pick.
func (f *Follower) engines(now time.Time) []roles.Engine {
	maps.DeleteFunc(f.skipped, func(_ string, until time.Time) bool { return !now.Before(until) })
	var out []roles.Engine
	snap := f.o.Snapshot()
	for _, p := range snap.All() {
		if p.Role != instance.Prefill {
			break
		}
		d, ok := snap.Lookup(instance.Key{Role: instance.Decode, Address: p.Address})
		if !ok || !movable(p) || !movable(d) || !f.skipped[p.Address].IsZero() || f.o.View(p.Key) != "" || f.o.View(d.Key) != "" {
			continue
		}
		t, _ := f.o.Load(p.Key)
		out = append(out, roles.Engine{Address: p.Address, Models: p.Record.Models[:1], Prefill: p.Usable(), Decode: d.Usable(), InFlight: t.InFlight + int64(t.Others)})
	}
	return out
}

// movable reports whether proxies may change the role of the engine of an instance.
func movable(in *instance.Instance) bool {
	return in.View == "" && in.Verified && in.Record.State == instance.Ready && in.Weight() > 0 && !in.TimedWeight && len(in.Record.Models) > 0 && (in.Intent == "" || in.AutoRole)
}

// group is the load of the instances with the same first model. Requests for adapters count for it.
type group struct {
	model    string
	load     roles.Load
	rates    estimate.Rates
	reported float64 // number of decode instances whose engines report their load
	shares   float64 // the same, but instances in both roles count as half
}

// loads returns the load of each group, ordered by model, without instances that this proxy does not pick.
func (f *Follower) loads() []*group {
	groups := map[string]*group{}
	snap := f.o.Snapshot()
	for _, in := range snap.All() {
		if !in.Usable() || len(in.Record.Models) == 0 || f.o.View(in.Key) != "" { // an engine in both roles has one view
			continue
		}
		model := in.Record.Models[0]
		g := groups[model]
		if g == nil {
			g = &group{model: model}
			groups[model] = g
			for _, name := range in.Record.Models {
				if r := f.o.Rates(name, ""); r.Samples() > g.rates.Samples() {
					g.rates = r
				}
			}
		}
		share := 1.0
		if other, ok := snap.Lookup(in.Key.Other()); ok && other.Usable() {
			share = 0.5
		}
		t, _ := f.o.Load(in.Key)
		g.add(in.Role, share, t)
	}
	refused := map[string]int64{}
	for _, q := range f.o.Queues() {
		refused[q.Model] = q.Refused
		if g := groupOf(instance.QueuedModel(q.Model), groups, snap); g != nil {
			for _, n := range q.Waiting {
				g.load.Waiting += float64(n) * g.rates.Uncached
			}
			if before, listed := f.refused[q.Model]; listed { // otherwise the count may include old refusals
				g.load.Refused += float64(max(0, q.Refused-before)) / max(q.Share, 0.01) // other proxies refuse in proportion
			}
		}
	}
	f.refused = refused
	for model, tokens := range f.o.Elsewhere() {
		if g := groupOf(model, groups, snap); g != nil {
			g.load.Waiting += tokens
		}
	}
	for _, g := range groups {
		if g.reported > 0 {
			g.load.Capacity /= g.reported
			g.load.Usage /= g.shares
		}
	}
	return slices.SortedFunc(maps.Values(groups), func(a, b *group) int { return cmp.Compare(a.model, b.model) })
}

// groupOf returns the group of a model or an adapter; nil if no usable instance lists it.
func groupOf(model string, groups map[string]*group, snap *instance.Snapshot) *group {
	if g := groups[model]; g != nil {
		return g
	}
	for _, role := range instance.Roles() {
		for _, in := range snap.Usable(role) {
			if slices.Contains(in.Record.Models, model) {
				return groups[in.Record.Models[0]]
			}
		}
	}
	return nil
}

// add adds an instance. An engine in both roles has one count of requests; those that are not waiting
// prompts are streams.
func (g *group) add(role instance.Role, share float64, t sched.Total) {
	waiting := float64(t.Waiting) + t.OthersWaiting
	if role == instance.Prefill {
		g.load.Prefill += share
		g.load.Waiting += waiting
		if waiting > 0 {
			g.load.Computing += share
		}
		return
	}
	g.load.Decode += share
	g.load.Streams += max(0, float64(t.InFlight)+t.Others-waiting/max(g.rates.Uncached, 1))
	g.load.Held += float64(t.Held) + t.OthersHeld
	if e := t.Engine; e != nil && e.All.Capacity > 0 {
		g.reported++
		g.load.Capacity += float64(e.All.Capacity)
		g.shares += share
		g.load.Usage += share * e.All.Usage
	}
}
