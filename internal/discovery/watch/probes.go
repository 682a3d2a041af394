package watch

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pdmesh/pdmesh/internal/cli/sleep"
	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/verify"
	"github.com/pdmesh/pdmesh/internal/engine/vllm"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// This file probes instances whose models are not known, and pending adds.

const (
	// maxProbes bounds the probes under way at one time.
	maxProbes = 64
	// mismatchFactor multiplies the interval of the probes of an instance with a wrong model.
	mismatchFactor = 5
	// spread is the time that each instance adds to the interval of liveness probes, so that
	// all together make at most 200 probes a second.
	spread = 5 * time.Millisecond
)

// target is one instance to probe.
type target struct {
	in *instance.Instance
	// generation changes whenever an earlier answer is no longer valid: the instance is then
	// probed immediately.
	generation string
	pending    bool
	model      string
	rec        instance.Record // to write at promotion
	drop       bool            // the instance has a record: only remove the pending add
	liveness   bool            // a liveness probe of a known instance; all of them share one rate
}

// probeScheduler runs the goroutines that probe, one for each target, with a common bound
// on the probes under way. Only the owner uses it.
type probeScheduler struct {
	w              *Watcher
	table          *table
	facts          *verify.Facts
	slots          chan struct{}
	wg             sync.WaitGroup
	run            map[schema.Name]probing
	livenessProbes atomic.Int64 // number of liveness probes in run
}

type probing struct {
	target
	cancel context.CancelFunc
}

func newProbeScheduler(w *Watcher, t *table, facts *verify.Facts) *probeScheduler {
	return &probeScheduler{w: w, table: t, facts: facts, slots: make(chan struct{}, maxProbes), run: make(map[schema.Name]probing)}
}

// stop ends all probes and waits for them.
func (a *probeScheduler) stop() {
	for _, r := range a.run {
		r.cancel()
	}
	a.wg.Wait()
}

// update starts and ends probes, so that exactly the targets are probed. It does not wait for
// probes that it ends: they are cancelled, and late results are dropped because they name an
// outdated incarnation or revision.
func (a *probeScheduler) update(ctx context.Context, want map[schema.Name]target) {
	if a.w.o.Prober == nil {
		return
	}
	for k := range a.run {
		if _, ok := want[k]; !ok {
			a.end(k)
		}
	}
	var begin []schema.Name
	for k, t := range want {
		if r, ok := a.run[k]; ok && r.generation == t.generation {
			continue
		}
		a.end(k)
		begin = append(begin, k)
		if t.liveness {
			a.livenessProbes.Add(1) // for all, before the first loop reads it
		}
	}
	for _, k := range begin {
		actx, cancel := context.WithCancel(ctx)
		t := want[k]
		a.run[k] = probing{t, cancel}
		a.wg.Go(func() {
			defer cancel()
			a.probeLoop(actx, ctx, t)
		})
	}
}

// end ends the probes of one target, if they run.
func (a *probeScheduler) end(k schema.Name) {
	r, ok := a.run[k]
	if !ok {
		return
	}
	r.cancel()
	delete(a.run, k)
	if r.liveness {
		a.livenessProbes.Add(-1)
	}
}

// probeLoop probes until its context ends, which happens when the target needs no more probes.
// run is the context of the Watcher. Writes to etcd use run, since the watch delivers their
// change, which ends the context of the target before etcd has answered.
func (a *probeScheduler) probeLoop(ctx, run context.Context, t target) {
	// All leases may be lost at once, so the first probes are spread as well.
	if n := a.livenessProbes.Load(); t.liveness && n > 1 && !sleep.For(ctx, rand.N(time.Duration(n)*spread)) {
		return
	}
	for {
		select {
		case <-ctx.Done():
			return
		case a.slots <- struct{}{}:
		}
		outcome, slow := a.once(ctx, run, t)
		<-a.slots
		if ctx.Err() != nil {
			return
		}
		if !a.w.send(ctx, func(o *owner) {
			if outcome != nil {
				outcome(o)
			}
			o.announce()
		}) {
			return
		}
		wait := a.w.o.WaitingInterval
		switch {
		case t.liveness:
			wait = max(wait, time.Duration(a.livenessProbes.Load())*spread)
		case slow:
			wait *= mismatchFactor
		}
		wait = etcd.Jitter(wait)
		if !sleep.For(ctx, wait) {
			return
		}
	}
}

// once makes one probe, and returns the message that applies its outcome, nil if it is no evidence
// about the instance. slow reports whether the next one may come later than usual.
func (a *probeScheduler) once(ctx, run context.Context, t target) (outcome message, slow bool) {
	if t.drop {
		if _, err := a.w.o.Writer.DropPending(run, t.in); err != nil && run.Err() == nil {
			a.w.log.WithField("instance", t.in.Key.String()).Warn(err.Error())
		}
		return nil, true
	}
	suspensions := a.w.suspension.requested.Load()
	pctx, cancel := context.WithTimeout(ctx, a.w.o.ProbeTimeout)
	facts, err := a.w.o.Prober.Probe(pctx, t.in)
	silent := errors.Is(err, vllm.ErrTimeout) || err != nil && pctx.Err() != nil
	cancel()
	if err != nil && t.liveness {
		// A deadline that passed while this process was suspended is no evidence, and neither is
		// a probe that was not sent.
		a.w.suspension.noticeGap(time.Now())
		if errors.Is(err, vllm.ErrNotSent) || suspensions != a.w.suspension.requested.Load() {
			return nil, false
		}
	}
	var reason string
	mismatch := false
	switch {
	case err != nil:
		reason = "no answer yet: " + instance.Printable(err.Error(), 300)
	case len(facts.Models) == 0:
		reason = "it answers but lists no model"
	case !facts.Serves(t.model, false):
		mismatch = true
		reason = verify.WrongModel(facts.Models, t.model)
	}
	if !t.pending {
		answer := &verify.Answer{Incarnation: t.in.Incarnation(), Mismatch: mismatch, Silent: silent, Reason: reason}
		if err == nil && len(facts.Models) > 0 {
			answer.Facts = &facts
		}
		return func(o *owner) { o.onAnswer(t.in.Key, answer) }, mismatch
	}
	if reason == "" {
		reason = a.promote(run, t, facts)
	}
	wait := verify.Wait{ModRevision: t.in.ModRevision, Reason: reason}
	return func(o *owner) { o.onWait(t.in.Key, wait) }, mismatch
}

// promote registers the instance of a pending add. If another proxy did so first, the watch
// delivers that.
func (a *probeScheduler) promote(ctx context.Context, t target, facts instance.Facts) (trouble string) {
	won, err := a.w.o.Writer.Promote(ctx, t.in, verify.WithFacts(t.rec, facts))
	if err != nil {
		return "it answers, but could not be added: " + instance.Printable(err.Error(), 300)
	}
	if won {
		a.w.note(func(s *Status) { s.Promotions++ })
		a.w.log.WithField("instance", t.in.Key.String()).Info("the instance answers: added")
	}
	return ""
}

// retarget starts the probes that are needed, ends all others, and forgets the answers of
// instances that were removed.
func (a *probeScheduler) retarget(ctx context.Context) {
	a.update(ctx, a.targets())
	removed := func(kind schema.Kind, k instance.Key) bool {
		return a.table.find(kind, k) == nil
	}
	maps.DeleteFunc(a.facts.Instances, func(k instance.Key, _ *verify.Answer) bool { return removed(schema.KindInstance, k) })
	maps.DeleteFunc(a.facts.Models, func(k instance.Key, _ *verify.Models) bool { return removed(schema.KindInstance, k) })
	maps.DeleteFunc(a.facts.Pending, func(k instance.Key, _ verify.Wait) bool { return removed(schema.KindPending, k) })
}

// targets returns the instances to probe.
func (a *probeScheduler) targets() map[schema.Name]target {
	targets := map[schema.Name]target{}
	for _, e := range a.table.order {
		if t, ok := a.target(e); ok {
			targets[schema.Name{Kind: e.Kind, Key: t.in.Key}] = t
		}
	}
	return targets
}

// target reports whether the instance of an entry is to be probed, and how.
func (a *probeScheduler) target(e *entry) (target, bool) {
	probe := func(kind string, liveness bool) (target, bool) {
		return target{
			in: e.instance(), model: a.w.o.Model, liveness: liveness, // without the facts of earlier probes
			generation: kind + e.incarnation() + "@" + strconv.FormatInt(e.mod, 10),
		}, true
	}
	switch {
	case e.in == nil, !e.good, e.shadowed, e.in.View == instance.Elsewhere:
	case e.Kind == schema.KindPending && a.w.o.Writer == nil:
	case e.Kind == schema.KindPending:
		return a.waiting(e)
	case e.absent != nil && e.absent.probed():
		return probe("absent ", true)
	case e.in.View == instance.Unverified, e.in.View == instance.Rejected:
		if a.facts.Refuses(e.Key, e.rec) == nil { // else no answer would change that
			return probe("", false)
		}
	case e.learns:
		return probe("learned ", true)
	}
	return target{}, false
}

// waiting returns the target of a pending add.
func (a *probeScheduler) waiting(e *entry) (target, bool) {
	if e.in.Intent == instance.Removed {
		return target{}, false
	}
	t := target{in: e.in, pending: true, model: e.pending.Model, rec: e.pending.FullRecord(e.Key)}
	t.model = cmp.Or(t.model, a.w.o.Model)
	// An instance that is used although etcd does not hold it must still be added; while its
	// lease is queried it counts as registered.
	if r := a.table.find(schema.KindInstance, e.Key); r != nil && r.good && (r.absent == nil || r.absent.kind == leaseQueried) {
		t.drop = true
	}
	t.generation = strconv.FormatInt(e.mod, 10) + " " + strconv.FormatBool(t.drop)
	return t, true
}

// ObserveModels stores the list of models that was read from the engine of in, an instance of a
// snapshot. Snapshots have it until the engine restarts or, if an agent maintains the record, until
// the record is rewritten. It does not wait for the next snapshot.
func (w *Watcher) ObserveModels(ctx context.Context, in *instance.Instance, facts instance.Facts) {
	m := &verify.Models{Incarnation: in.Incarnation(), ModRevision: in.ModRevision, Lease: in.Lease, Names: facts.Models, Truncated: facts.ModelsTruncated}
	w.send(ctx, func(o *owner) { o.observeModels(in.Key, m) })
}

// observeModels stores a list that was read. Nothing is published if the snapshot has it already.
func (o *owner) observeModels(k instance.Key, m *verify.Models) {
	e := o.table.find(schema.KindInstance, k)
	if e == nil {
		return // it was removed
	}
	if in := e.in; in != nil && !e.old && in.Incarnation() == m.Incarnation &&
		in.Record.ModelsTruncated == m.Truncated && slices.Equal(in.Record.Models, m.Names) {
		return
	}
	o.facts.Models[k] = m
	o.table.touch(k)
}
