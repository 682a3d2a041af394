// Package lease maintains keys under leases: an agent's instance or refusal, and a proxy's presence
// and load digest.
package lease

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// Registrar keeps the key of an instance, or both keys, under a lease while it runs. It overwrites
// only keys that are provably its own, and renews the same lease until etcd reports it as lost. It
// restores a key that was deleted without an operator's removal. No error of etcd stops it.
type Registrar struct {
	cli             *clientv3.Client
	o               RegistrarOptions
	log             logrus.FieldLogger
	keeper          *leaseKeeper
	wanted          chan struct{} // a record was Set; capacity one
	overrideChanged chan struct{} // an override may have changed; capacity one

	// Used by the goroutine of hold only.
	held   bool           // this process has registered before
	leases map[int64]bool // every lease under which this process has written
	fails  int            // attempts failed in a row

	mu      sync.Mutex // guards all below
	rec     *instance.Record
	arrived *instance.Record // the last value of rec that was in etcd
	status  Status
	cancel  context.CancelFunc // of Run
	done    chan struct{}      // closed at Run's end; nil before Run
	revoked bool
}

// NewRegistrar returns a Registrar that uses cli, which the caller closes after Run has returned
// and Revoke was called.
func NewRegistrar(cli *clientv3.Client, o RegistrarOptions) *Registrar {
	o.TTL = cmp.Or(o.TTL, schema.DefaultTTL)
	return &Registrar{
		cli: cli, o: o, log: etcd.LogOrDiscard(o.Log).WithField("instance", o.Key.String()),
		keeper:          newLeaseKeeper(cli, o.TTL),
		wanted:          make(chan struct{}, 1),
		overrideChanged: make(chan struct{}, 1),
		leases:          make(map[int64]bool),
		status:          Status{Phase: Idle},
	}
}

// Set sets the record to register. The first call begins the registration, later ones change it. It
// does not wait for etcd.
func (r *Registrar) Set(rec instance.Record) {
	r.mu.Lock()
	r.rec = &rec
	r.mu.Unlock()
	etcd.Signal(r.wanted)
}

// Arrived reports whether the last record that was Set has been in etcd.
func (r *Registrar) Arrived() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rec != nil && r.rec == r.arrived
}

// Status returns a copy of the current state.
func (r *Registrar) Status() Status {
	k := r.keeper.state()
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.status
	s.LeaseID, s.LastRenewal, s.LeasesLost = int64(k.id), k.renewed, k.lost
	s.Renewals, s.RenewalFails = k.renewals, k.failures
	return s
}

// Run registers the instance and keeps it registered until ctx ends. It returns when all its
// goroutines have ended. It does not revoke the lease, so that a program that restarts quickly
// keeps its key; Revoke does. Run must be called only once.
func (r *Registrar) Run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r.mu.Lock()
	if r.revoked {
		r.mu.Unlock()
		return
	}
	r.cancel, r.done = cancel, make(chan struct{})
	r.mu.Unlock()
	defer close(r.done)
	var work sync.WaitGroup
	work.Go(func() { r.keeper.run(ctx) })
	work.Go(func() { r.hold(ctx) })
	for _, k := range r.o.Key.Each() {
		work.Go(func() { r.followOverride(ctx, k) })
	}
	work.Wait()
}

// Revoke ends the registration: it ends Run, waits for it, and revokes the
// lease, so that the key is deleted when it returns nil. If etcd cannot be reached,
// the key is deleted when the lease expires. Revoke has a deadline in addition to
// that of ctx, and may be called more than once.
func (r *Registrar) Revoke(ctx context.Context) error {
	r.mu.Lock()
	r.revoked = true
	cancel, done := r.cancel, r.done
	r.mu.Unlock()
	if cancel != nil {
		cancel()
		select {
		case <-done:
		case <-ctx.Done():
			return fmt.Errorf("revoke %s: %w", r.o.Key, ctx.Err())
		}
	}
	if err := r.keeper.revoke(ctx); err != nil {
		return fmt.Errorf("revoke %s: %w (its key expires with the lease)", r.o.Key, err)
	}
	r.setPhase(Idle, 0, "")
	return nil
}

// hold keeps the keys up to date. It checks them when a record is set, when an override or the
// lease changes, and at least once per TTL.
func (r *Registrar) hold(ctx context.Context) {
	next := time.NewTimer(time.Hour)
	next.Stop()
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.wanted:
		case <-r.overrideChanged:
		case <-next.C:
		case <-r.keeper.changed:
			if r.leaseChanged(next) {
				continue
			}
		}
		if wait, again := r.attempt(ctx); again {
			next.Reset(wait)
		}
	}
}

// leaseChanged handles a change of the lease. It reports whether no attempt is needed now.
func (r *Registrar) leaseChanged(next *time.Timer) bool {
	k := r.keeper.state()
	s := r.Status()
	switch {
	case k.id == 0 && s.Phase.Holds():
		r.log.Warn("lease lost, registering again")
		r.setPhase(Registering, 0, "the lease was lost")
		// Agents that lost their leases together must not all register again at once.
		next.Reset(rand.N(r.o.TTL / 4))
	case k.trouble != nil && s.Phase == Registered:
		r.setPhase(Unknown, s.ModRevision, k.trouble.Error())
	case k.trouble == nil && s.Phase == Unknown:
		// An old etcd may confirm a lease that it has already revoked, so an attempt reads the key.
		return false
	}
	return true
}

const (
	attemptRetry = 200 * time.Millisecond
	attemptCap   = 3 * time.Second
)

// attempt reads the key and writes it if that is necessary. It returns the time until the
// next attempt; again is false while there is nothing to register.
func (r *Registrar) attempt(ctx context.Context) (wait time.Duration, again bool) {
	r.mu.Lock()
	rec := r.rec
	r.mu.Unlock()
	if rec == nil {
		return 0, false
	}
	if s := r.Status(); s.Phase == Idle {
		r.setPhase(Registering, 0, "")
	}
	wait, err := r.try(ctx, rec)
	if ctx.Err() != nil {
		return 0, false
	}
	if err != nil {
		s := r.Status()
		phase := Registering
		if s.Phase.Holds() {
			phase = Unknown
		}
		r.setPhase(phase, s.ModRevision, err.Error())
		wait = etcd.Jitter(min(attemptRetry<<min(r.fails, 10), attemptCap))
		r.fails++
		return wait, true
	}
	r.fails = 0
	return wait, true
}

// try makes one attempt. After an error, the state of the keys is unknown.
func (r *Registrar) try(ctx context.Context, rec *instance.Record) (wait time.Duration, err error) {
	claims, err := r.claims(ctx, *rec)
	if err != nil {
		return 0, err
	}
	phase, why, revision := outcome(claims)
	if due := r.due(claims, phase); len(due) > 0 {
		written, err := r.write(ctx, claims, due)
		if err != nil {
			return 0, err
		}
		if written == 0 {
			return etcd.Jitter(50 * time.Millisecond), nil
		}
		revision = written
	}
	// If nothing was due, the keys are correct already: a periodic check, or a write that timed out
	// but was applied.
	if phase == Registered {
		r.registered(rec, revision, why)
		return etcd.Jitter(r.o.TTL), nil
	}
	r.setPhase(phase, 0, why)
	if phase == Overridden {
		return etcd.Jitter(r.o.TTL / 3), nil
	}
	return etcd.Jitter(r.o.TTL), nil
}

// registered records that this registrar holds the key at a revision, with the value of rec. why is
// the reason if the registration is incomplete, "" usually.
func (r *Registrar) registered(rec *instance.Record, revision int64, why string) {
	r.held = true
	phase := Registered
	if k := r.keeper.state(); k.trouble != nil {
		phase, why = Unknown, k.trouble.Error()
	}
	r.setPhase(phase, revision, why)
	r.mu.Lock()
	r.arrived = rec
	r.mu.Unlock()
}

// setPhase changes the phase and reports it.
func (r *Registrar) setPhase(phase Phase, revision int64, why string) {
	r.mu.Lock()
	was, wasWhy := r.status.Phase, r.status.Err
	r.status.Phase, r.status.ModRevision, r.status.Err = phase, revision, why
	if was != phase && phase == Conflict {
		r.status.Conflicts++
	}
	r.mu.Unlock()
	if phase == Registered && why != "" && (was != phase || wasWhy != why) {
		r.log.Warn("partly registered: " + why)
	}
	if was == phase {
		return
	}
	log := r.log.WithField("phase", string(phase))
	switch phase {
	case Conflict, Unknown, StaticPresent, Overridden:
		log.Warn(why)
	default:
		log.Info("registration phase changed")
	}
	if r.o.OnEvent != nil {
		r.o.OnEvent(r.Status())
	}
}

// followOverride signals r.overrideChanged whenever the operator's intent for a key changes, until
// ctx ends, so that an agent reacts to a removal, and to its end, at once. It signals the start of a
// watch, too, since earlier changes have no events. hold also reads the key at least once in a TTL,
// so a watch that hangs only delays the reaction.
func (r *Registrar) followOverride(ctx context.Context, k instance.Key) {
	etcd.Retry(ctx, r.log, "the watch of the operator's intent ended, watching again", func(ctx context.Context) error {
		ctx, stop := etcd.WatchContext(ctx)
		defer stop()
		for resp := range r.cli.Watch(ctx, r.o.Layout.Override(k), clientv3.WithCreatedNotify()) {
			if err := resp.Err(); err != nil {
				return err
			}
			etcd.Signal(r.overrideChanged)
		}
		return fmt.Errorf("the watch was closed: %w", context.Cause(ctx))
	})
}
