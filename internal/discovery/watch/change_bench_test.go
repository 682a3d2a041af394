package watch

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// benchOwner is an owner that has listed n instances.
func benchOwner(b *testing.B, ctx context.Context, n int) *owner {
	l, err := schema.NewLayout("/pd")
	require.NoError(b, err)
	o := newOwner(New(nil, Options{Layout: l, Prober: mute{}}))
	kvs := make([]*mvccpb.KeyValue, 0, n)
	for i := range n {
		kvs = append(kvs, benchKV(i, int64(i+2)))
	}
	o.following = true
	o.load(&etcd.Listing{KVs: kvs, Revision: int64(n + 2), Cluster: 1, Schema: 1})
	o.publish(ctx)
	return o
}

func benchKV(i int, mod int64) *mvccpb.KeyValue {
	role := instance.Roles()[i%2]
	return &mvccpb.KeyValue{
		Key:            fmt.Appendf(nil, "/pd/%s/10.%d.%d.%d:8000", role, i>>16, i>>8&255, i&255),
		Value:          []byte(`{"v":1,"id":"01JD","models":["Qwen/Qwen2.5-7B-Instruct"],"state":"ready"}`),
		CreateRevision: int64(i + 2), ModRevision: mod, Version: 1, Lease: int64(i + 1),
	}
}

func (o *owner) benchEvent(kind mvccpb.Event_EventType, kv *mvccpb.KeyValue) {
	o.apply(&clientv3.WatchResponse{
		Header: &etcdserverpb.ResponseHeader{Revision: kv.ModRevision},
		Events: []*clientv3.Event{{Type: kind, Kv: kv}},
	})
}

// BenchmarkChange measures one change from the watch response to the published snapshot. An instance is
// registered again, or it is deleted under a valid lease (two publications) and comes back.
func BenchmarkChange(b *testing.B) {
	for _, n := range []int{1000, 10000} {
		b.Run(fmt.Sprintf("put/%d", n), func(b *testing.B) {
			o := benchOwner(b, b.Context(), n)
			mod := o.table.revision
			b.ReportAllocs()
			for b.Loop() {
				mod++
				o.benchEvent(mvccpb.Event_PUT, benchKV(int(mod*7)%n, mod))
				o.publish(b.Context())
			}
		})
		b.Run(fmt.Sprintf("delete-and-add/%d", n), func(b *testing.B) {
			o := benchOwner(b, b.Context(), n)
			mod := o.table.revision
			b.ReportAllocs()
			for b.Loop() {
				mod++
				kv := benchKV(int(mod*7)%n, mod)
				o.benchEvent(mvccpb.Event_DELETE, kv)
				o.publish(b.Context())
				q := o.leaseQueries[0]
				o.leaseQueries, q.alive = nil, true
				o.leaseKnown(q)
				o.publish(b.Context())
				mod++
				o.benchEvent(mvccpb.Event_PUT, benchKV(int(mod*7-7)%n, mod))
				o.publish(b.Context())
			}
			require.Equal(b, n, len(o.w.Snapshot().All()), "instances of")
		})
		b.Run(fmt.Sprintf("state/%d", n), func(b *testing.B) {
			o := benchOwner(b, b.Context(), n)
			b.ReportAllocs()
			for b.Loop() {
				_, err := json.Marshal(o.stateToSave())
				require.NoError(b, err)
			}
		})
	}
}
