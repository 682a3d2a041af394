package watch

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// leaseRig is an owner without etcd that has listed twelve instances: A and B
// under lease 1, C and D under lease 2, each other one under its own lease.
type leaseRig struct {
	*owner
	rev int64
}

var leaseRigKeys = map[string]string{
	"A": "/pd/decode/10.0.0.1:1", "B": "/pd/decode/10.0.0.2:1", "C": "/pd/decode/10.0.0.3:1", "D": "/pd/decode/10.0.0.4:1",
}

func leaseKV(key string, lease, rev int64) *mvccpb.KeyValue {
	return &mvccpb.KeyValue{
		Key: []byte(key), Value: []byte(`{"models":["m"],"id":"X"}`), CreateRevision: rev, ModRevision: rev, Version: 1, Lease: lease,
	}
}

func newLeaseRig(t *testing.T) *leaseRig {
	t.Helper()
	l, err := schema.NewLayout("/pd")
	require.NoError(t, err)
	r := &leaseRig{owner: newOwner(New(nil, Options{Layout: l, Prober: mute{}, OrphanGrace: time.Hour})), rev: 20}
	r.following = true
	for range maxProbes { // no instance is probed
		r.ask.slots <- struct{}{}
	}
	t.Cleanup(r.ask.stop)
	kvs := []*mvccpb.KeyValue{
		leaseKV(leaseRigKeys["A"], 1, 2), leaseKV(leaseRigKeys["B"], 1, 3), leaseKV(leaseRigKeys["C"], 2, 4), leaseKV(leaseRigKeys["D"], 2, 5),
	}
	for i := range int64(8) {
		kvs = append(kvs, leaseKV("/pd/decode/10.0.1."+string(rune('1'+i))+":1", 10+i, 6+i))
	}
	r.list(t, kvs)
	return r
}

func (r *leaseRig) list(t *testing.T, kvs []*mvccpb.KeyValue) {
	t.Helper()
	r.rev++
	r.load(&etcd.Listing{KVs: kvs, Revision: r.rev, Cluster: 1, Schema: 1})
	r.publish(t.Context())
}

// deleted and written return events of a revision.
func (r *leaseRig) deleted(rev int64, key string) *clientv3.Event {
	return &clientv3.Event{Type: clientv3.EventTypeDelete, Kv: &mvccpb.KeyValue{Key: []byte(leaseRigKeys[key]), ModRevision: rev}}
}

func (r *leaseRig) written(rev int64, key string, lease int64) *clientv3.Event {
	kv := leaseKV(leaseRigKeys[key], lease, rev)
	if e := r.table.entries[r.table.layout.Parse(leaseRigKeys[key])]; e != nil && e.absent == nil {
		kv.CreateRevision, kv.Version = e.create, e.version+1
	}
	return &clientv3.Event{Type: clientv3.EventTypePut, Kv: kv}
}

// deliver passes one response of the watch to the owner.
func (r *leaseRig) deliver(events ...*clientv3.Event) {
	for _, e := range events {
		r.rev = max(r.rev, e.Kv.ModRevision)
	}
	r.apply(&clientv3.WatchResponse{Header: &etcdserverpb.ResponseHeader{Revision: r.rev}, Events: events})
}

// If a key is deleted, etcd is asked about its lease, unless another key under the lease
// still exists: then the lease has not ended. The present state of that other key counts.
func TestLease_QueriedUnlessProven(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		do   func(r *leaseRig, t *testing.T)
		// asked has the leases of the unanswered questions; dropped has
		// the instances that were dropped without a question.
		asked   []int64
		dropped []string
	}{
		{"one of two keys", func(r *leaseRig, _ *testing.T) { r.deliver(r.deleted(30, "A")) }, nil, []string{"A"}},
		{"both, one after the other", func(r *leaseRig, t *testing.T) {
			r.deliver(r.deleted(30, "A"))
			left := r.unanswered()
			require.Empty(t, left, "asked: %+v", left)
			r.deliver(r.deleted(31, "B"))
		}, []int64{1}, []string{"A"}},
		{"both in one revision, as when the lease ends", func(r *leaseRig, _ *testing.T) {
			r.deliver(r.deleted(30, "A"), r.deleted(30, "B"))
		}, []int64{1, 1}, nil},
		{"both in one response of two revisions", func(r *leaseRig, _ *testing.T) {
			r.deliver(r.deleted(30, "A"), r.deleted(31, "B"))
		}, []int64{1, 1}, nil},
		{"the other one is under another lease now", func(r *leaseRig, _ *testing.T) {
			r.deliver(r.written(30, "B", 9))
			r.deliver(r.deleted(31, "A"))
		}, []int64{1}, nil},
		{"the other one has no lease any more", func(r *leaseRig, _ *testing.T) {
			r.deliver(r.written(30, "B", 0))
			r.deliver(r.deleted(31, "A"))
		}, []int64{1}, nil},
		{"it is under another lease itself", func(r *leaseRig, _ *testing.T) {
			r.deliver(r.written(30, "A", 9))
			r.deliver(r.deleted(31, "A"))
		}, []int64{9}, nil},
		{"it joined the lease of others", func(r *leaseRig, _ *testing.T) {
			r.deliver(r.written(30, "A", 2))
			r.deliver(r.deleted(31, "A"))
		}, nil, []string{"A"}},
		{"the others of a lease that was joined go with it", func(r *leaseRig, _ *testing.T) {
			r.deliver(r.written(30, "A", 2))
			r.deliver(r.deleted(31, "A"), r.deleted(31, "C"), r.deleted(31, "D"))
		}, []int64{2, 2, 2}, nil},
		{"the other one is written again", func(r *leaseRig, _ *testing.T) {
			r.deliver(r.written(30, "B", 1))
			r.deliver(r.deleted(31, "B"), r.deleted(31, "A"))
		}, []int64{1, 1}, nil},
		{"the other one cannot be read, and is there", func(r *leaseRig, _ *testing.T) {
			broken := r.written(30, "B", 1)
			broken.Kv.Value = []byte(`{`)
			r.deliver(broken)
			r.deliver(r.deleted(31, "A"))
		}, nil, []string{"A"}},
		{"the other one is an orphan", func(r *leaseRig, t *testing.T) {
			r.deliver(r.deleted(30, "A"), r.deleted(30, "B"))
			for _, q := range r.unanswered() {
				r.leaseKnown(q)
			}
			r.deliver(r.written(31, "A", 1))
			r.deliver(r.deleted(32, "A"))
		}, []int64{1}, nil},
		{"it is not in a list, the other one is", func(r *leaseRig, t *testing.T) {
			r.list(t, r.without("A"))
		}, nil, []string{"A"}},
		{"neither is in a list", func(r *leaseRig, t *testing.T) {
			r.list(t, r.without("A", "B"))
		}, []int64{1, 1}, nil},
		{"the other one was deleted before the list", func(r *leaseRig, t *testing.T) {
			r.list(t, r.without("B"))
			left := r.unanswered()
			require.Empty(t, left, "asked: %+v", left)
			r.deliver(r.deleted(40, "A"))
		}, []int64{1}, []string{"B"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newLeaseRig(t)
			c.do(r, t)
			var asked []int64
			for _, q := range r.unanswered() {
				asked = append(asked, q.lease)
			}
			slices.Sort(asked)
			assert.Equal(t, c.asked, asked, "asked for")
			assert.Empty(t, r.leaseQueries, "questions are left: %+v", r.leaseQueries)
			r.publish(t.Context())
			for name, key := range leaseRigKeys {
				e := r.table.entries[r.table.layout.Parse(key)]
				assert.Equal(t, slices.Contains(c.dropped, name), e == nil, "%s: dropped: %+v", name, e)
				if e != nil {
					if _, shown := r.w.Snapshot().Lookup(e.Key); !shown {
						t.Errorf("%s is not shown", name)
					}
				}
			}
		})
	}
}

// without returns a list without the named keys.
func (r *leaseRig) without(names ...string) []*mvccpb.KeyValue {
	var out []*mvccpb.KeyValue
	for _, e := range r.table.order {
		key := r.table.layout.Root() + e.Path()
		if !slices.ContainsFunc(names, func(n string) bool { return leaseRigKeys[n] == key }) {
			out = append(out, &mvccpb.KeyValue{
				Key: []byte(key), Value: e.value, CreateRevision: e.create, ModRevision: e.mod, Version: e.version, Lease: e.leased,
			})
		}
	}
	return out
}

// Instances that are lost with most of their role are held, even if their lease is proven valid.
func TestMassLoss_HeldDespiteLeaseProof(t *testing.T) {
	t.Parallel()
	r := newLeaseRig(t)
	var events []*clientv3.Event
	for _, e := range r.table.order {
		kv := leaseKV(r.table.layout.Root()+e.Path(), 7, 30) // all under one lease
		kv.CreateRevision, kv.Version = e.create, 2
		events = append(events, &clientv3.Event{Type: clientv3.EventTypePut, Kv: kv})
	}
	r.deliver(events...)
	keys := []string{"A", "B", "C", "D"}
	events = nil
	for _, k := range keys {
		events = append(events, r.deleted(31, k))
	}
	events = append(events, &clientv3.Event{Type: clientv3.EventTypeDelete, Kv: &mvccpb.KeyValue{Key: []byte("/pd/decode/10.0.1.1:1"), ModRevision: 31}})
	r.deliver(events...)
	left := r.unanswered()
	require.Empty(t, left, "asked: %+v", left)
	r.publish(t.Context())
	for _, k := range keys {
		in, ok := r.w.Snapshot().Lookup(instance.Key{Role: instance.Decode, Address: leaseRigKeys[k][len("/pd/decode/"):]})
		require.True(t, ok, k)
		assert.Equal(t, instance.Orphan, in.View, k)
	}
	assert.Equal(t, 5, r.w.Status().Held, "not all five are held")
}
