// Package health is this proxy's own opinion of instances, from its requests and its probes.
// It is never written to etcd: one proxy's broken route must not take an instance from
// the others.
//
//	requests: cannot connect ─────────────▶ out (hard) ──probe──▶ slow start ─▶ in
//	          fails where others serve ─▶ strikes ─▶ out (soft) ──time, probe──┘
//	silence:  no sign of life, while others give one ─▶ out (hard)
package health

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// Prober asks one instance for a sign of life; nil means alive. ErrNotAsked means that the
// probe was not sent, ErrNoAnswer that no answer came in time. Any other error is a
// refusal, or an answer that is an error.
type Prober interface {
	Alive(ctx context.Context, in *instance.Instance) error
}

// ErrNotAsked is wrapped by errors of a Prober that are the proxy's own: they say nothing
// of the instance.
var ErrNotAsked = errors.New("not asked")

// ErrNoAnswer is wrapped by errors of a Prober that got no answer in time: the instance is
// silent, or slow.
var ErrNoAnswer = errors.New("no answer")

// Source gives the current membership.
type Source interface {
	Snapshot() *instance.Snapshot
}

// Options configure a Tracker; the zero values of numbers mean the defaults named.
type Options struct {
	Source Source
	Prober Prober
	Log    logrus.FieldLogger

	// MaxFailures is how many strikes in a row eject an instance, default 3.
	MaxFailures int
	// Ejection is how long the first soft ejection lasts, default 1 s; each
	// one that follows soon doubles it up to MaxEjection, default 30 s.
	Ejection, MaxEjection time.Duration
	// ProbeInterval is the pause between the probes of an ejected instance,
	// default 250 ms at first, growing to 2 s.
	ProbeInterval, MaxProbeInterval time.Duration
	// ProbeTimeout bounds one probe, default 5 s.
	ProbeTimeout time.Duration
	// SilenceLimit is how long an instance whose requests wait may give no sign of
	// life while others do, default 1.25 s. It grows where instances answer slowly.
	SilenceLimit time.Duration
	// Heard tells how many signs of life requests have had of an instance; nil: none.
	Heard func(instance.Key) uint64
	// PrefillOptional tells that decode instances do the work of prefill instances
	// when there are none.
	PrefillOptional bool
	// SlowStart is how long a readmitted instance takes to get its full share,
	// default 10 s; negative: at once.
	SlowStart time.Duration
	// OnEject is called after an ejection, on a goroutine of the Tracker. dead tells that
	// requests that wait for the instance can get no answer any more.
	OnEject func(k instance.Key, dead bool, reason string)
}

func (o *Options) setDefaults() {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&o.Ejection, time.Second)
	def(&o.MaxEjection, 30*time.Second)
	def(&o.ProbeInterval, 250*time.Millisecond)
	def(&o.MaxProbeInterval, 2*time.Second)
	def(&o.ProbeTimeout, 5*time.Second)
	def(&o.SilenceLimit, 1250*time.Millisecond)
	def(&o.SlowStart, 10*time.Second)
	if o.MaxFailures <= 0 {
		o.MaxFailures = 3
	}
	if o.Heard == nil {
		o.Heard = func(instance.Key) uint64 { return 0 }
	}
	if o.OnEject == nil {
		o.OnEject = func(instance.Key, bool, string) {}
	}
}

// Tracker has the records of instances. It is safe for concurrent use.
type Tracker struct {
	opts Options
	// trouble has the keys of the records, nil if there are none, so that a request
	// needs no lock while no instance has one. The list is replaced, never changed.
	trouble atomic.Pointer[[]instance.Key]

	mu            sync.RWMutex          // guards what follows; never held across a probe
	records       map[string]*record    // by address: an engine in both roles has one
	history       map[string]slowAnswer // slow answers of late, by address
	closed        bool
	lastComplaint time.Time // when logNotAsked has logged last

	ctx    context.Context //nolint:containedctx // the probes' own lifetime, ended by Close
	cancel context.CancelFunc
	work   sync.WaitGroup
}

// Ejection says why and since when an instance is not picked.
type Ejection struct {
	Since  time.Time
	Reason string
	// Hard tells that no connection to it could be made, or that it was silent.
	Hard bool
	// Strikes and Ejections are those in a row.
	Strikes, Ejections int
}

// New builds a Tracker; Close ends its probes.
func New(o Options) *Tracker {
	o.setDefaults()
	ctx, cancel := context.WithCancel(context.Background())
	return &Tracker{opts: o, records: map[string]*record{}, history: map[string]slowAnswer{}, ctx: ctx, cancel: cancel}
}

// Close stops the probes and waits for them.
func (t *Tracker) Close() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.cancel()
	t.work.Wait()
}

// Trouble tells whether any instance has a record.
func (t *Tracker) Trouble() bool { return t.trouble.Load() != nil }

// Troubled lists the instances that have a record, in no order. The list must not be
// changed.
func (t *Tracker) Troubled() []instance.Key {
	if list := t.trouble.Load(); list != nil {
		return *list
	}
	return nil
}

// publishTroubled stores the keys of the records in trouble; the lock is held.
func (t *Tracker) publishTroubled() {
	if len(t.records) == 0 {
		t.trouble.Store(nil)
		return
	}
	roles := instance.Roles()
	list := make([]instance.Key, 0, len(roles)*len(t.records))
	for address, r := range t.records {
		for _, role := range roles {
			if *r.incarnation(role) != "" {
				list = append(list, instance.Key{Role: role, Address: address})
			}
		}
	}
	t.trouble.Store(&list)
}

// Available tells whether the instance is not ejected.
func (t *Tracker) Available(k instance.Key) bool {
	if !t.Trouble() {
		return true
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	r := t.records[k.Address]
	return r == nil || !r.ejected
}

// Unreachable tells that the instance is ejected and could not be connected to, or was
// silent, so that it is not tried even when few others are left.
func (t *Tracker) Unreachable(k instance.Key) bool {
	if !t.Trouble() {
		return false
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	r := t.records[k.Address]
	return r != nil && r.ejected && r.hard
}

// Share is the part of its turns that the instance should take, above 0 and at most 1. It
// is less than 1 while the instance starts slowly after an ejection.
func (t *Tracker) Share(k instance.Key) float64 {
	if !t.Trouble() || t.opts.SlowStart < 0 {
		return 1
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	r := t.records[k.Address]
	if r == nil || r.readmitted.IsZero() {
		return 1
	}
	return min(1, max(0.1, float64(time.Since(r.readmitted))/float64(t.opts.SlowStart)))
}

// Ejected gives the ejection of an instance, if there is one.
func (t *Tracker) Ejected(k instance.Key) (Ejection, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	r := t.records[k.Address]
	if r == nil || !r.ejected {
		return Ejection{}, false
	}
	return Ejection{Since: r.since, Reason: r.reason, Hard: r.hard, Strikes: r.strikes, Ejections: r.ejections}, true
}

// Success clears the strikes of an instance that served.
func (t *Tracker) Success(in *instance.Instance) {
	if !t.Trouble() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.records[in.Address]
	if r == nil || r.ejected {
		return
	}
	r.strikes = 0
	if !r.suspected && (r.readmitted.IsZero() || time.Since(r.readmitted) > t.forgiveAfter()) {
		t.forget(in.Key)
	}
}

// forgiveAfter is how long an instance must serve well until its ejections are forgotten.
func (t *Tracker) forgiveAfter() time.Duration { return max(t.opts.SlowStart, 2*t.opts.MaxEjection) }

// Strike counts a failure of an instance on a request that another one served. Enough of
// them in a row eject it; while it starts slowly after an ejection a single one does.
func (t *Tracker) Strike(in *instance.Instance, reason string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	r := t.record(in)
	if r.ejected {
		return
	}
	r.strikes++
	probation := !r.readmitted.IsZero() && time.Since(r.readmitted) < t.opts.SlowStart
	if r.strikes < t.opts.MaxFailures && !probation {
		return
	}
	t.eject(in, r, false, false, reason)
}

// Eject takes out an instance that cannot be connected to.
func (t *Tracker) Eject(in *instance.Instance, reason string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	r := t.record(in)
	if r.ejected && r.hard {
		return
	}
	t.eject(in, r, true, true, reason)
}

// forget deletes a record; the lock is held.
func (t *Tracker) forget(k instance.Key) {
	if t.records[k.Address] != nil {
		delete(t.records, k.Address)
		t.publishTroubled()
	}
}

// eject takes an instance out and starts its recovery; the lock is held. dead is that of
// OnEject.
func (t *Tracker) eject(in *instance.Instance, r *record, hard, dead bool, reason string) {
	already := r.ejected
	r.ejected, r.hard, r.since, r.reason = true, hard, time.Now(), reason
	if !r.readmitted.IsZero() && time.Since(r.readmitted) > t.forgiveAfter() {
		r.ejections = 0
	}
	r.ejections++
	t.opts.Log.WithFields(logrus.Fields{"instance": in.Key.String(), "reason": reason, "hard": hard}).
		Warn("instance ejected until it answers again")
	if !already {
		t.work.Go(func() { t.recover(in, r) })
	}
	t.work.Go(func() { t.opts.OnEject(in.Key, dead, reason) })
}

// ejectionTime is the least time that the present ejection lasts.
func (t *Tracker) ejectionTime(r *record) time.Duration {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if r.hard {
		return 0
	}
	d := t.opts.Ejection << min(r.ejections-1, 20)
	if d <= 0 || d > t.opts.MaxEjection {
		d = t.opts.MaxEjection
	}
	return d/2 + rand.N(d/2+1)
}

// recover waits and probes until the instance answers, and readmits it.
func (t *Tracker) recover(in *instance.Instance, r *record) {
	pause := t.opts.ProbeInterval
	timer := time.NewTimer(max(t.ejectionTime(r), pause))
	defer timer.Stop()
	for {
		snap := t.opts.Source.Snapshot()
		now := t.findLife(snap, in.Key, r)
		if now == nil {
			t.forgetLife(in.Key, r)
			return
		}
		select {
		case <-t.ctx.Done():
			return
		case <-snap.Changed():
			continue
		case <-timer.C:
		}
		if t.probe(now) == nil {
			t.readmit(in.Key, r)
			return
		}
		pause = min(2*pause, t.opts.MaxProbeInterval)
		timer.Reset(pause/2 + rand.N(pause/2+1))
	}
}

// probe asks an instance for a sign of life; nil means that it gave one.
func (t *Tracker) probe(in *instance.Instance) error {
	ctx, cancel := context.WithTimeout(t.ctx, t.opts.ProbeTimeout)
	defer cancel()
	err := t.opts.Prober.Alive(ctx, in)
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) && !errors.Is(err, ErrNotAsked) {
		return fmt.Errorf("%w within %s", ErrNoAnswer, t.opts.ProbeTimeout)
	}
	return err
}

// forgetLife deletes the record of an incarnation that has ended.
func (t *Tracker) forgetLife(k instance.Key, r *record) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.records[k.Address] == r {
		t.forget(k)
	}
}

func (t *Tracker) readmit(k instance.Key, r *record) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !r.silentSince.IsZero() {
		t.rememberSlow(k, min(time.Since(r.silentSince), longestLimit))
	}
	r.ejected, r.hard, r.strikes, r.readmitted, r.silentSince = false, false, 0, time.Now(), time.Time{}
	t.opts.Log.WithFields(logrus.Fields{"instance": k.String(), "out": time.Since(r.since).Round(time.Millisecond)}).
		Info("instance readmitted: it answers again")
}
