package lease

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/instance"
)

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
