package lease

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
)

// An etcd with little CPU time answers a renewal after seconds. A keeper that
// abandons each call earlier would never learn that its lease is still valid.
func TestRenewalsWaitForASlowEtcd(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	link := testkit.StartLink(t, server.Endpoint())
	cli, err := etcd.Dial(etcd.Config{Endpoints: []string{link.Address()}})
	require.NoError(t, err)
	defer func() { _ = cli.Close() }()
	ctx, cancel := context.WithCancel(t.Context())
	k := newLeaseKeeper(cli, 15*time.Second)
	_, err = k.lease(ctx)
	require.NoError(t, err)
	link.Delay(renewTimeout*3/4 + time.Millisecond) // each way
	done := make(chan struct{})
	go func() { defer close(done); k.run(ctx) }()
	testkit.Until(t, time.Minute, k.state, func(s leaseState) bool { return s.renewals != 0 })
	assert.EqualValues(t, 0, k.state().lost, "leases lost")
	cancel()
	<-done
}
