package discovery_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/pdmesh/pdmesh/internal/discovery"
	"github.com/pdmesh/pdmesh/internal/testkit"
)

// A silent watch is found also when the only key that tells of it differs in
// another way at every audit, because it keeps changing.
func TestAuditFindsSilentWatchOfARestlessKey(t *testing.T) {
	t.Parallel()
	etcd := testkit.StartEtcd(t)
	cli, l := etcd.Client(t), layout(t)
	if err := discovery.NewStore(cli, l, "test").EnsureSchema(t.Context()); err != nil {
		t.Fatal(err)
	}
	k := prefill("10.0.0.1:8100")
	put(t, cli, l.Instance(k), ready)
	var deaf atomic.Bool
	w := watch(t, lossy(t, etcd.Endpoint(), func(*mvccpb.Event) bool { return deaf.Load() }), auditing(t, newProber()))
	waitFor(t, w, k, usable)
	waitState(t, w, discovery.Live)
	deaf.Store(true)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			if _, err := cli.Put(ctx, l.Instance(k), ready); err != nil && ctx.Err() == nil {
				t.Errorf("put: %v", err)
			}
			<-tick.C
		}
	})
	defer wg.Wait()
	defer cancel()
	testkit.Eventually(t, soon, func() error {
		if s := w.Status(); s.Drift == 0 {
			return fmt.Errorf("not found: %+v", s)
		}
		return nil
	})
}
