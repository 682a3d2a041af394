package discovery

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// Registrar holds one instance's key under a lease for as long as it runs. It
// writes only what it can prove to be its own, renews the same lease until
// etcd says that it is gone, and puts the key back if somebody deletes it
// without an operator's removal. No trouble with etcd ends it.
type Registrar struct {
	cli    *clientv3.Client
	o      RegistrarOptions
	log    logrus.FieldLogger
	keeper *keeper
	wanted chan struct{} // a new record is wanted; capacity one

	// Of the goroutine that holds the key.
	held  bool            // the key was ours once
	mine  map[string]bool // every incarnation this process has registered
	fails int             // attempts failed in a row

	mu      sync.Mutex // guards all below
	rec     *instance.Record
	arrived *instance.Record // the one of rec that etcd had last
	status  RegistrationStatus
	cancel  context.CancelFunc // of Run
	done    chan struct{}      // closed at Run's end; nil before Run
	revoked bool
}

// NewRegistrar makes a Registrar on a client that the caller closes after Run
// has returned and Revoke was called.
func NewRegistrar(cli *clientv3.Client, o RegistrarOptions) *Registrar {
	if o.TTL <= 0 {
		o.TTL = DefaultTTL
	}
	return &Registrar{
		cli: cli, o: o, log: orSilent(o.Log).WithField("instance", o.Key.String()),
		keeper: newKeeper(cli, o.TTL),
		wanted: make(chan struct{}, 1),
		mine:   make(map[string]bool),
		status: RegistrationStatus{Phase: Idle},
	}
}

// Set says what the record shall be. The first call begins the registration,
// later ones change it; the latest wins. It does not wait for etcd.
func (r *Registrar) Set(rec instance.Record) {
	r.mu.Lock()
	r.rec = &rec
	r.mu.Unlock()
	poke(r.wanted)
}

// Arrived tells that what was Set last has been in etcd as it is.
func (r *Registrar) Arrived() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rec != nil && r.rec == r.arrived
}

// Status gives a copy of the current state.
func (r *Registrar) Status() RegistrationStatus {
	k := r.keeper.state()
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.status
	s.LeaseID, s.LastRenewal, s.LeasesLost = int64(k.id), k.renewed, k.lost
	s.Renewals, s.RenewalFails = k.renewals, k.failures
	return s
}

// Run registers and stays registered until ctx ends. It returns nil with all
// its goroutines gone, and leaves the lease to run out: a program that only
// stops for a moment keeps its key. Revoke is the deliberate end. Run is called
// once.
func (r *Registrar) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r.mu.Lock()
	if r.revoked {
		r.mu.Unlock()
		return nil
	}
	r.cancel, r.done = cancel, make(chan struct{})
	r.mu.Unlock()
	defer close(r.done)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { r.keeper.run(ctx); return nil })
	g.Go(func() error { r.hold(ctx); return nil })
	return g.Wait()
}

// Revoke ends the registration: it ends Run, waits for it, and revokes the
// lease, so that the key is gone when it returns nil. If etcd cannot be reached
// the key goes when the lease runs out. It has a deadline of its own besides
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
		return fmt.Errorf("revoke %s: %w (its key goes when the lease runs out)", r.o.Key, err)
	}
	r.become(Idle, 0, "")
	return nil
}

// hold makes the key what is wanted, again and again.
func (r *Registrar) hold(ctx context.Context) {
	next := time.NewTimer(time.Hour)
	next.Stop()
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.wanted:
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

// leaseChanged hears from the keeper. It tells whether there is nothing to do
// right now.
func (r *Registrar) leaseChanged(next *time.Timer) bool {
	k := r.keeper.state()
	s := r.Status()
	switch {
	case k.id == 0 && (s.Phase == Registered || s.Phase == Unknown):
		r.log.Warn("etcd says the lease is gone: registering again")
		r.become(Registering, 0, "the lease was lost")
		// Those who lost theirs together shall not all come back at once.
		next.Reset(rand.N(r.o.TTL / 4))
		return true
	case k.id == 0:
		return true
	case k.trouble != nil && s.Phase == Registered:
		r.become(Unknown, s.ModRevision, k.trouble.Error())
		return true
	case k.trouble == nil && s.Phase == Unknown:
		// An old etcd can confirm a lease that it has revoked already; the key
		// tells the truth.
		return false
	default:
		return true
	}
}

const (
	attemptRetry = 200 * time.Millisecond
	attemptCap   = 3 * time.Second
)

// attempt looks at the key and does what is due. It gives the time until the
// next attempt; again is false while there is nothing to register.
func (r *Registrar) attempt(ctx context.Context) (wait time.Duration, again bool) {
	r.mu.Lock()
	rec := r.rec
	r.mu.Unlock()
	if rec == nil {
		return 0, false
	}
	if s := r.Status(); s.Phase == Idle {
		r.become(Registering, 0, "")
	}
	wait, err := r.try(ctx, *rec)
	if ctx.Err() != nil {
		return 0, false
	}
	if err != nil {
		s := r.Status()
		phase := Registering
		if s.Phase == Registered || s.Phase == Unknown {
			phase = Unknown
		}
		r.become(phase, s.ModRevision, err.Error())
		wait = jitter(min(attemptRetry<<min(r.fails, 10), attemptCap))
		r.fails++
		return wait, true
	}
	r.fails = 0
	r.mu.Lock()
	if r.status.Phase == Registered {
		r.arrived = rec
	}
	r.mu.Unlock()
	return wait, true
}

// try makes one attempt. An error means that nothing is known for sure.
func (r *Registrar) try(ctx context.Context, rec instance.Record) (wait time.Duration, err error) {
	if err := fillRecord(r.o.Key, &rec); err != nil {
		return 0, fmt.Errorf("register %s: %w", r.o.Key, err)
	}
	rec.HostID = r.o.HostID
	value, err := EncodeRecord(rec)
	if err != nil {
		return 0, fmt.Errorf("register %s: %w", r.o.Key, err)
	}
	f, err := look(ctx, r.cli, r.o.Layout, r.o.Key, r.fails == 0)
	if err != nil {
		return 0, err
	}
	if err := checkFound(r.o.Layout, f); err != nil {
		return 0, err
	}
	phase, why := r.judge(f, rec)
	if phase != Registering {
		r.become(phase, 0, why)
		if phase == Overridden {
			return jitter(r.o.TTL / 3), nil
		}
		return jitter(r.o.TTL), nil
	}
	if f.record != nil && r.ours(f) && bytes.Equal(f.record.Value, value) {
		// Nothing to write: the own-key check, or a write that timed out and was
		// applied.
		r.registered(rec, f.record.ModRevision)
		return jitter(r.o.TTL), nil
	}
	return r.write(ctx, f, rec, value)
}

// judge decides from the key as it is whether this agent may write it:
// Registering means yes.
func (r *Registrar) judge(f *found, rec instance.Record) (phase Phase, why string) {
	if f.removed() {
		return Overridden, "removed by an operator: pdctl allow lets it register again"
	}
	switch {
	case f.record == nil, r.ours(f):
		return Registering, ""
	case f.record.Lease == 0:
		return StaticPresent, "a static record of an operator stands at this key; it is left as it is"
	}
	other, _, err := DecodeRecord(r.o.Key, f.record.Value)
	switch {
	case err != nil:
		return Conflict, "somebody else holds this key with a value that cannot be read: " + reasonOf(err)
	case other.ID != "" && (other.ID == rec.ID || r.mine[other.ID]):
		// Our own write under a lease we have lost.
		return Registering, ""
	case other.HostID != "" && other.HostID == r.o.HostID && !r.held:
		// An earlier life of this agent left it; its lease has not run out yet.
		return Registering, ""
	case other.HostID != "" && other.HostID == r.o.HostID:
		// We had it, and another on this host took it over. Taking it back would
		// go on for ever: the later one keeps it.
		return Conflict, "another agent on this host has taken the key over (id " + quote(other.ID, 64) + "); stop one of the two"
	default:
		return Conflict, "another host holds this key (host id " + quote(other.HostID, 64) + ", id " + quote(other.ID, 64) +
			", agent " + quote(other.Agent, 64) + "); give one of the two another address"
	}
}

// ours tells that the key hangs on the lease that we hold now.
func (r *Registrar) ours(f *found) bool {
	id := r.keeper.state().id
	return id != 0 && f.record.Lease == int64(id)
}

// write puts the key under our lease, if nothing that was decided upon has
// changed since it was read.
func (r *Registrar) write(ctx context.Context, f *found, rec instance.Record, value []byte) (time.Duration, error) {
	id, err := r.keeper.lease(ctx)
	if err != nil {
		return 0, err
	}
	l, k := r.o.Layout, r.o.Key
	compares := []clientv3.Cmp{
		unchanged(l.Instance(k), f.record),
		unchanged(l.Override(k), f.override),
		unchanged(l.Schema(), f.schema),
	}
	ops := []clientv3.Op{clientv3.OpPut(l.Instance(k), string(value), clientv3.WithLease(id))}
	if f.record != nil {
		compares = append(compares, clientv3.Compare(clientv3.LeaseValue(l.Instance(k)), "=", f.record.Lease))
	}
	if f.schema == nil {
		ops = append(ops, clientv3.OpPut(l.Schema(), schemaValue))
	}
	cctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := r.cli.Txn(cctx).If(compares...).Then(ops...).Commit()
	switch {
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		r.keeper.forget(id)
		return 0, fmt.Errorf("register %s: %w", k, err)
	case err != nil:
		// It may have been applied; the next attempt looks first.
		return 0, explain(ctx, r.cli, "register "+k.String(), err, r.fails == 0)
	case !resp.Succeeded:
		return jitter(50 * time.Millisecond), nil
	}
	if f.record == nil || f.record.Lease != int64(id) {
		r.mu.Lock()
		r.status.Registrations++
		r.mu.Unlock()
	}
	r.registered(rec, resp.Header.Revision)
	return jitter(r.o.TTL), nil
}

// registered notes that the key is ours at a revision.
func (r *Registrar) registered(rec instance.Record, revision int64) {
	r.held = true
	if rec.ID != "" {
		r.mine[rec.ID] = true
	}
	if k := r.keeper.state(); k.trouble != nil {
		r.become(Unknown, revision, k.trouble.Error())
		return
	}
	r.become(Registered, revision, "")
}

// become changes the phase and tells whoever wants to know.
func (r *Registrar) become(phase Phase, revision int64, why string) {
	r.mu.Lock()
	was := r.status.Phase
	r.status.Phase, r.status.ModRevision, r.status.Err = phase, revision, why
	if was != phase && phase == Conflict {
		r.status.Conflicts++
	}
	r.mu.Unlock()
	if was == phase {
		return
	}
	log := r.log.WithField("phase", string(phase))
	switch phase {
	case Conflict, Unknown, StaticPresent, Overridden:
		log.Warn(why)
	default:
		log.Info("registration is " + string(phase))
	}
	if r.o.OnEvent != nil {
		r.o.OnEvent(r.Status())
	}
}
