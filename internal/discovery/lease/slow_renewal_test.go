package lease_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

// If etcd takes longer to answer than the first deadline of a
// renewal, the deadline is extended and the lease is kept.
func TestRenewalOfASlowEtcd(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	link := testkit.StartLink(t, etcd.Endpoint())
	o := members.RegistrarOptions(t, members.Prefill("10.0.0.1:8100"))
	o.TTL = 15 * time.Second
	r := members.Register(t, members.Dial(t, link.Address()), o)
	r.Set(instance.Record{ID: "A", Models: []string{"m"}})
	members.WaitPhase(t, r, lease.Registered)
	before := r.Status()
	link.Delay(1250 * time.Millisecond) // each way: more than the first deadline of a renewal
	testkit.Eventually(t, time.Minute, func() error {
		s := r.Status()
		require.True(t, s.LeasesLost <= 0, "the lease was lost: %+v", s)
		if s.Renewals < before.Renewals+2 { // one may have been in flight
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	assert.Equal(t, before.LeaseID, r.Status().LeaseID, "before %+v", before)
}
