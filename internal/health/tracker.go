// Package health is this proxy's private opinion of instances: who was found
// unreachable by a request is ejected at once and comes back when a probe of
// its own succeeds. Nothing of it is ever written to etcd, since one proxy's
// broken route must not take an instance from the others.
package health

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// Prober asks one instance for a sign of life; nil means alive.
type Prober interface {
	Alive(ctx context.Context, in *instance.Instance) error
}

// Source gives the current membership.
type Source interface {
	Snapshot() *instance.Snapshot
}

// Options configure a Tracker.
type Options struct {
	Source Source
	Prober Prober
	Log    logrus.FieldLogger
	// Interval is the first wait between an ejection and its probe, default
	// 250 ms; it doubles up to MaxInterval, default 2 s.
	Interval, MaxInterval time.Duration
	// Timeout bounds one probe, default 1 s.
	Timeout time.Duration
}

// Tracker holds the opinions. It is safe for concurrent use.
type Tracker struct {
	opts Options
	// count lets Available answer without a look-up while nobody is ejected,
	// which is nearly always.
	count atomic.Int64

	mu      sync.RWMutex // guards ejected and closed; never held across a probe
	ejected map[instance.Key]*ejection
	closed  bool

	ctx    context.Context //nolint:containedctx // the probes' own lifetime, ended by Close
	cancel context.CancelFunc
	probes sync.WaitGroup
}

// Ejection says why and since when an instance is not picked.
type Ejection struct {
	Since  time.Time
	Reason string
}

type ejection struct {
	Ejection
	incarnation string
}

// New builds a Tracker; Close ends its probes.
func New(o Options) *Tracker {
	if o.Interval <= 0 {
		o.Interval = 250 * time.Millisecond
	}
	if o.MaxInterval <= 0 {
		o.MaxInterval = 2 * time.Second
	}
	if o.Timeout <= 0 {
		o.Timeout = time.Second
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &Tracker{opts: o, ejected: map[instance.Key]*ejection{}, ctx: ctx, cancel: cancel}
}

// Close stops the probes and waits for them.
func (t *Tracker) Close() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.cancel()
	t.probes.Wait()
}

// Available tells whether the instance may be picked.
func (t *Tracker) Available(k instance.Key) bool {
	if t.count.Load() == 0 {
		return true
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.ejected[k] == nil
}

// Ejected gives the ejection of an instance, if there is one.
func (t *Tracker) Ejected(k instance.Key) (Ejection, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if e := t.ejected[k]; e != nil {
		return e.Ejection, true
	}
	return Ejection{}, false
}

// Eject takes an instance out until a probe of it succeeds, it is gone from
// the membership, or a new incarnation has registered. More calls for an
// instance that is out already change nothing.
func (t *Tracker) Eject(in *instance.Instance, reason string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || t.ejected[in.Key] != nil {
		return
	}
	e := &ejection{Ejection: Ejection{Since: time.Now(), Reason: reason}, incarnation: in.Incarnation()}
	t.ejected[in.Key] = e
	t.count.Add(1)
	t.opts.Log.WithFields(logrus.Fields{"instance": in.Key.String(), "reason": reason}).
		Warn("instance ejected until it answers again")
	t.probes.Add(1)
	go func() {
		defer t.probes.Done()
		t.recover(in, e)
	}()
}

// recover probes one ejected instance until it may come back.
func (t *Tracker) recover(in *instance.Instance, e *ejection) {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval = t.opts.Interval, t.opts.MaxInterval
	timer := time.NewTimer(b.NextBackOff())
	defer timer.Stop()
	for {
		snap := t.opts.Source.Snapshot()
		changed := snap.Changed()
		now, ok := snap.Lookup(in.Key)
		switch {
		case !ok:
			t.readmit(in.Key, "it left the membership")
			return
		case now.Incarnation() != e.incarnation:
			t.readmit(in.Key, "a new incarnation registered")
			return
		}
		select {
		case <-t.ctx.Done():
			return
		case <-changed:
			continue
		case <-timer.C:
		}
		if t.alive(now) {
			t.readmit(in.Key, "it answers again")
			return
		}
		timer.Reset(b.NextBackOff())
	}
}

func (t *Tracker) alive(in *instance.Instance) bool {
	ctx, cancel := context.WithTimeout(t.ctx, t.opts.Timeout)
	defer cancel()
	return t.opts.Prober.Alive(ctx, in) == nil
}

func (t *Tracker) readmit(k instance.Key, why string) {
	t.mu.Lock()
	delete(t.ejected, k)
	t.count.Add(-1)
	t.mu.Unlock()
	t.opts.Log.WithFields(logrus.Fields{"instance": k.String(), "reason": why}).Info("instance readmitted")
}
