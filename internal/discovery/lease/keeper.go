package lease

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/cli/sleep"
	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
)

// leaseKeeper holds one lease at a time and renews it on a separate goroutine, so that the
// other work of the owner cannot delay the renewals.
//
// The client library closes the KeepAlive channel when the TTL has passed on the local
// clock, although etcd extends the lease after an outage. leaseKeeper therefore renews the
// same lease with single calls until etcd answers that it does not know the lease. No other
// error counts as a loss.
type leaseKeeper struct {
	cli *clientv3.Client
	ttl time.Duration
	// changed receives a signal after each change of the state below; capacity one.
	changed chan struct{}
	granted chan struct{} // wakes the renewals after a grant; capacity one

	mu sync.Mutex // guards leaseState
	leaseState
}

func newLeaseKeeper(cli *clientv3.Client, ttl time.Duration) *leaseKeeper {
	return &leaseKeeper{cli: cli, ttl: ttl, changed: make(chan struct{}, 1), granted: make(chan struct{}, 1)}
}

// leaseState is the state of a keeper.
type leaseState struct {
	id       clientv3.LeaseID // 0: none, or lost
	renewed  time.Time
	trouble  error // error of the last renewal; nil if it succeeded
	lost     int64
	renewals int64
	failures int64 // renewals that failed for another reason than a lost lease
}

func (k *leaseKeeper) state() leaseState {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.leaseState
}

// lease returns the current lease, granting one if there is none.
func (k *leaseKeeper) lease(ctx context.Context) (clientv3.LeaseID, error) {
	if id := k.state().id; id != 0 {
		return id, nil
	}
	id, err := etcd.Grant(ctx, k.cli, k.ttl)
	if err != nil {
		return 0, err
	}
	k.mu.Lock()
	k.id, k.renewed, k.trouble = id, time.Now(), nil
	k.mu.Unlock()
	etcd.Signal(k.granted)
	return id, nil
}

// forget drops a lease that has turned out to be lost.
func (k *leaseKeeper) forget(id clientv3.LeaseID) {
	k.mu.Lock()
	if k.id == id && id != 0 {
		k.id, k.trouble = 0, nil
		k.lost++
	}
	k.mu.Unlock()
	etcd.Signal(k.changed)
}

const (
	// renewTimeout is the first time limit of a renewal. It doubles with each renewal that is not
	// answered, up to a third of the TTL, so that an etcd with little CPU time can answer.
	renewTimeout = 2 * time.Second
	renewRetry   = 200 * time.Millisecond
	renewCap     = time.Second
)

// run renews the lease until ctx ends. It never revokes the lease.
func (k *leaseKeeper) run(ctx context.Context) {
	third := k.ttl / 3
	retry, limit := renewRetry, min(third, renewTimeout)
	for {
		id := k.state().id
		if id == 0 {
			select {
			case <-ctx.Done():
				return
			case <-k.granted:
			}
			// Agents that lost their leases together must not renew together.
			if !sleep.For(ctx, rand.N(third)) {
				return
			}
			retry, limit = renewRetry, min(third, renewTimeout)
			continue
		}
		wait, start := third, time.Now()
		err := k.renew(ctx, id, limit)
		switch took := time.Since(start); {
		case err == nil:
			retry, limit = renewRetry, min(third, max(renewTimeout, 2*took))
		case took >= limit:
			limit = min(third, 2*limit)
			fallthrough
		default:
			wait, retry = etcd.Jitter(retry), min(2*retry, renewCap)
		}
		if !sleep.For(ctx, wait) {
			return
		}
	}
}

// renew makes one renewal and records its outcome.
func (k *leaseKeeper) renew(ctx context.Context, id clientv3.LeaseID, timeout time.Duration) error {
	cctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	_, err := k.cli.KeepAliveOnce(cctx, id)
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		k.forget(id)
		return err
	}
	was := k.state().trouble
	if err != nil && ctx.Err() == nil {
		err = etcd.Explain(ctx, k.cli, "renew the lease", err, was == nil)
	}
	k.mu.Lock()
	if k.id == id {
		k.trouble = err
		switch {
		case err == nil:
			k.renewed = time.Now()
			k.renewals++
		case ctx.Err() == nil:
			k.failures++
		}
	}
	k.mu.Unlock()
	if (was == nil) != (err == nil) {
		etcd.Signal(k.changed)
	}
	return err
}

// revoke revokes the lease, which deletes its keys.
func (k *leaseKeeper) revoke(ctx context.Context) error {
	k.mu.Lock()
	id := k.id
	k.id = 0
	k.mu.Unlock()
	if id == 0 {
		return nil
	}
	cctx, cancel := context.WithTimeout(ctx, etcd.CallTimeout)
	defer cancel()
	if _, err := k.cli.Revoke(cctx, id); err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return etcd.Explain(ctx, k.cli, "revoke the lease", err, true)
	}
	return nil
}
