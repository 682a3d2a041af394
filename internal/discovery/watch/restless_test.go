package watch_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/discovery/watch"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

// The audit detects a silent watch even if the only key that shows it
// changes all the time, so that each audit finds another difference.
func TestAudit_SilentWatchOfChangingKey(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	cli, l := etcd.Client(t), members.Layout(t)
	require.NoError(t, store.New(cli, l, "test").EnsureSchema(t.Context()))
	k := members.Prefill("10.0.0.1:8100")
	members.Put(t, cli, l.Instance(k), members.Ready)
	var deaf atomic.Bool
	w := members.Watch(t, lossy(t, etcd.Endpoint(), func(*mvccpb.Event) bool { return deaf.Load() }), auditing(t, members.NewProber()))
	members.WaitFor(t, w, k, members.Usable)
	members.WaitState(t, w, watch.Live)
	deaf.Store(true)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			_, err := cli.Put(ctx, l.Instance(k), members.Ready)
			assert.False(t, err != nil && ctx.Err() == nil, "put: %v", err)
			<-tick.C
		}
	})
	defer wg.Wait()
	defer cancel()
	members.WaitStatus(t, w, func(s watch.Status) bool { return s.Drift != 0 })
}
