package watch

import (
	"fmt"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/verify"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit/require"
)

func benchTable(b *testing.B, n int) *table {
	l, err := schema.NewLayout("/pd")
	require.NoError(b, err)
	t := newTable(l)
	kvs := make([]*mvccpb.KeyValue, 0, n)
	for i := range n {
		kvs = append(kvs, benchKV(i, int64(i+2)))
	}
	t.load(kvs, int64(n+2))
	t.snapshot(verify.Facts{})
	return t
}

func benchKV(i int, mod int64) *mvccpb.KeyValue {
	role := instance.Roles()[i%2]
	return &mvccpb.KeyValue{
		Key:            fmt.Appendf(nil, "/pd/%s/10.%d.%d.%d:8000", role, i>>16, i>>8&255, i&255),
		Value:          []byte(`{"v":1,"id":"01JD","models":["Qwen/Qwen2.5-7B-Instruct"],"state":"ready"}`),
		CreateRevision: int64(i + 2), ModRevision: mod, Version: 1, Lease: int64(i + 1),
	}
}

// One change and its publication.
func BenchmarkPublish(b *testing.B) {
	for _, n := range []int{100, 1000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			t := benchTable(b, n)
			mod := t.revision
			b.ReportAllocs()
			for b.Loop() {
				mod++
				t.put(benchKV(int(mod)%n, mod))
				t.advance(mod)
				t.snapshot(verify.Facts{})
				t.takeChanges()
			}
		})
	}
}

func BenchmarkLookup(b *testing.B) {
	t := benchTable(b, 10000)
	s := t.snapshot(verify.Facts{})
	all := s.All()
	i := 0
	for b.Loop() {
		if _, ok := s.Lookup(all[i%len(all)].Key); !ok {
			b.Fatal("not found")
		}
		i += 7
	}
}
