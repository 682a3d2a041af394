package watch_test

import (
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

// atRevision returns a check of the revision of an instance.
func atRevision(rev int64) func(*instance.Instance) error {
	return members.Is(func(in *instance.Instance) bool { return in.ModRevision == rev })
}

// pendings lists the pending adds of a snapshot.
func pendings(s *instance.Snapshot) []*instance.Instance {
	var out []*instance.Instance
	for _, in := range s.All() {
		if in.View == instance.Pending {
			out = append(out, in)
		}
	}
	return out
}

// leased puts a ready record under a lease of its own.
func leased(t testing.TB, cli *clientv3.Client, l schema.Layout, k instance.Key) clientv3.LeaseID {
	t.Helper()
	id := members.Lease(t, cli, 600)
	members.Put(t, cli, l.Instance(k), members.Ready, clientv3.WithLease(id))
	return id
}
