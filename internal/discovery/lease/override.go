package lease

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/cli/sleep"
	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// followOverride signals r.look whenever the operator's intent for a key changes, until ctx
// ends, so that an agent reacts to a removal, and to its end, at once. hold also reads the key at
// least once in a TTL, so a watch that hangs only delays the reaction.
func (r *Registrar) followOverride(ctx context.Context, k instance.Key) {
	for tries := 0; ctx.Err() == nil; {
		start := time.Now()
		err := r.watchOverride(ctx, k)
		if ctx.Err() != nil {
			return
		}
		if tries++; time.Since(start) > etcd.GoodTime {
			tries = 0
		}
		r.log.WithField("error", err).Debug("the watch of the operator's intent ended, watching again")
		sleep.For(ctx, rand.N(min(etcd.BackoffCap, etcd.BackoffBase<<min(tries, 10))))
	}
}

// watchOverride watches the key of an override until that fails. The start of the watch is
// signalled, too: what has changed before it would be missed.
func (r *Registrar) watchOverride(ctx context.Context, k instance.Key) error {
	ctx, stop := etcd.WatchContext(ctx)
	defer stop()
	for resp := range r.cli.Watch(ctx, r.o.Layout.Override(k), clientv3.WithCreatedNotify()) {
		if err := resp.Err(); err != nil {
			return err
		}
		etcd.Signal(r.look)
	}
	return fmt.Errorf("the watch was closed: %w", context.Cause(ctx))
}
