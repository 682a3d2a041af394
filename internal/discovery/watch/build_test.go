package watch_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/discovery/verify"
	"github.com/pdmesh/pdmesh/internal/discovery/watch"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

func kv(key, value string, mod int64) *mvccpb.KeyValue {
	return &mvccpb.KeyValue{Key: []byte(key), Value: []byte(value), CreateRevision: mod, ModRevision: mod, Version: 1}
}

func TestBuild(t *testing.T) {
	t.Parallel()
	l := members.Layout(t)
	kvs := []*mvccpb.KeyValue{
		kv("/pd/meta/schema", `{"v":1}`, 2),
		kv("/pd/decode/10.0.0.2:1", `{"models":["m"]}`, 3),
		kv("/pd/prefill/10.0.0.1:1", `{"models":["m"],"role":"prefill"}`, 4),
		kv("/pd/prefill/10.0.0.3:1", ``, 5),
		kv("/pd/prefill/10.0.0.4:1", `{`, 6),
		kv("/pd/pending/decode/10.0.0.5:1", `{"model":"m"}`, 7),
		kv("/pd/pending/decode/10.0.0.2:1", ``, 8), // in addition to its record
		kv("/pd/override/decode/10.0.0.2:1", `{"state":"cordon"}`, 9),
		kv("/pd/override/decode/10.9.9.9:1", `{"state":"removed"}`, 10), // without an instance
		kv("/pd/load/p1", `{}`, 11),
		kv("/pd-old/prefill/10.0.0.6:1", members.Ready, 12),
	}
	lines := func(s *instance.Snapshot) []string {
		var out []string
		for _, in := range s.All() {
			out = append(out, fmt.Sprintf("%s view=%s intent=%s usable=%t rev=%d", in.Key, in.View, in.Intent, in.Usable(), in.ModRevision))
		}
		return out
	}
	want := []string{
		"prefill/10.0.0.1:1 view= intent= usable=true rev=4",
		"prefill/10.0.0.3:1 view=unverified intent= usable=false rev=5",
		"prefill/10.0.0.4:1 view=rejected intent= usable=false rev=6",
		"decode/10.0.0.2:1 view= intent=cordon usable=false rev=3",
		"decode/10.0.0.2:1 view=pending intent= usable=false rev=8",
		"decode/10.0.0.5:1 view=pending intent= usable=false rev=7",
	}
	for range 5 {
		s := watch.Build(l, kvs, 20, verify.Facts{})
		require.Empty(t, cmp.Diff(want, lines(s)))
		require.EqualValues(t, 20, s.Revision)
		rand.Shuffle(len(kvs), func(i, j int) { kvs[i], kvs[j] = kvs[j], kvs[i] })
	}
	// Facts are valid for their incarnation only.
	k := members.Prefill("10.0.0.3:1")
	facts := func(incarnation string) verify.Facts {
		return verify.Facts{Instances: map[instance.Key]*verify.Answer{
			k: {Incarnation: incarnation, Facts: &instance.Facts{Models: []string{"m"}}},
		}}
	}
	if in, _ := watch.Build(l, kvs, 20, facts("rev-5")).Lookup(k); !in.Usable() {
		t.Errorf("%+v", in)
	}
	if in, _ := watch.Build(l, kvs, 20, facts("rev-4")).Lookup(k); in.Usable() {
		t.Errorf("%+v", in)
	}
	// The same applies to the ranks and the KV transfer that the engine reports.
	shown := facts("rev-5")
	shown.Instances[k].Facts.DPSize, shown.Instances[k].Facts.Transfer = 2, instance.TransferNIXL
	if in, _ := watch.Build(l, kvs, 20, shown).Lookup(k); in.Record.DPSize != 2 || in.Record.Transfer != instance.TransferNIXL {
		t.Errorf("%+v", in)
	}
	// An invalid new value leaves the last good one active, unless the key was created again.
	k = members.Prefill("10.0.0.1:1")
	prev := watch.Build(l, kvs, 20, verify.Facts{})
	bad := kv("/pd/prefill/10.0.0.1:1", `{"weight":-1}`, 21)
	bad.CreateRevision, bad.Version = 4, 2
	if in, _ := watch.BuildAfter(l, []*mvccpb.KeyValue{bad}, 21, prev, verify.Facts{}).Lookup(k); !in.Usable() || in.ModRevision != 21 || !strings.Contains(in.Reason, "weight") {
		t.Errorf("%+v", in)
	}
	bad.CreateRevision = 21
	in, _ := watch.BuildAfter(l, []*mvccpb.KeyValue{bad}, 21, prev, verify.Facts{}).Lookup(k)
	assert.Equal(t, instance.Rejected, in.View, in)
	assert.Len(t, watch.BuildAfter(l, nil, 22, prev, verify.Facts{}).All(), 0, "instances came from nowhere")
}

func TestBuildWarnsOfBothRoles(t *testing.T) {
	t.Parallel()
	l := members.Layout(t)
	both := func(value string, leased int64) []*mvccpb.KeyValue {
		p, d := kv("/pd/prefill/10.0.0.1:1", value, 2), kv("/pd/decode/10.0.0.1:1", value, 3)
		p.Lease, d.Lease = leased, leased
		return []*mvccpb.KeyValue{p, d}
	}
	for _, c := range []struct {
		name  string
		kvs   []*mvccpb.KeyValue
		warns bool
	}{
		{"leased", both(members.Ready, 7), true},
		{"static", both(members.Ready, 0), false},
		{"kv_both", both(`{"models":["m"],"kv_role":"kv_both"}`, 7), false},
	} {
		for _, in := range watch.Build(l, c.kvs, 9, verify.Facts{}).All() {
			assert.True(t, in.Usable() && (in.Reason != "") == c.warns,
				"%s: %s usable %t, reason %q", c.name, in.Key, in.Usable(), in.Reason)
		}
	}
}

// A role change drains the other role. It has no effect on an engine that is registered in one role
// only, for example because its agent restarted with another --role. It has none either if both roles
// are drained by role changes, for example because one of several changes was reverted.
func TestBuildIgnoresRole(t *testing.T) {
	t.Parallel()
	l := members.Layout(t)
	value := `{"models":["m"],"kv_role":"kv_both"}`
	prefill, decode := kv("/pd/prefill/10.0.0.1:1", value, 2), kv("/pd/decode/10.0.0.1:1", value, 2)
	role := kv("/pd/override/prefill/10.0.0.1:1", `{"v":1,"state":"drain","role":"decode","weight":7}`, 3)
	other := kv("/pd/override/decode/10.0.0.1:1", `{"v":1,"state":"drain","role":"prefill"}`, 4)
	drain := kv("/pd/override/prefill/10.0.0.1:1", `{"v":1,"state":"drain","weight":7}`, 3)
	for _, c := range []struct {
		name   string
		kvs    []*mvccpb.KeyValue
		status string
		reason string
	}{
		{"both roles", []*mvccpb.KeyValue{prefill, decode, role}, "decode-only", "role decode"},
		{"one role", []*mvccpb.KeyValue{prefill, role}, "ready", "role decode has no effect: registered as prefill only"},
		{"both roles drained", []*mvccpb.KeyValue{prefill, decode, role, other}, "ready", "role decode has no effect: role prefill is set, too"},
		{"a drain and a role", []*mvccpb.KeyValue{prefill, decode, drain, other}, "draining", "drain"},
		{"a drain", []*mvccpb.KeyValue{prefill, drain}, "draining", "drain"},
	} {
		in, _ := watch.Build(l, c.kvs, 9, verify.Facts{}).Lookup(members.Prefill("10.0.0.1:1"))
		if in.Status() != c.status || in.Usable() != (c.status == "ready") || in.Reason != c.reason || in.Weight() != 7 {
			t.Errorf("%s: %s, %q, weight %d", c.name, in.Status(), in.Reason, in.Weight())
		}
	}
}

// After any history, the watcher's membership equals that of one list of etcd.
func TestWatcherEqualsList(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	direct, l := etcd.Client(t), members.Layout(t)
	link := testkit.StartLink(t, etcd.Endpoint())
	o := members.WatcherOptions(t)
	w := members.Watch(t, etcdtest.Client(t, link.Address()), o)
	members.WaitReady(t, w)
	rng := rand.New(rand.NewPCG(1, 2))
	values := []string{members.Ready, `{"id":"B","models":["m"]}`, ``, `{"weight":7,"models":["x"]}`}
	for i := range 400 {
		k := members.Prefill(fmt.Sprintf("10.0.0.%d:1", rng.IntN(12)+1))
		if rng.IntN(2) == 0 {
			k.Role = instance.Decode
		}
		switch rng.IntN(6) {
		case 0:
			members.Del(t, direct, l.Instance(k))
		case 1:
			members.Put(t, direct, l.Override(k), `{"state":"drain"}`)
		case 2:
			members.Del(t, direct, l.Override(k))
		case 3:
			members.Put(t, direct, l.Pending(k), ``)
		default:
			members.Put(t, direct, l.Instance(k), values[rng.IntN(len(values))])
		}
		switch i {
		case 100, 300:
			link.Cut()
		case 150, 320:
			link.Restore()
		case 120:
			_, err := direct.Compact(t.Context(), members.Put(t, direct, "/other", ""))
			require.NoError(t, err)
		}
	}
	want, err := store.New(direct, l, "test").Reader.Snapshot(t.Context())
	require.NoError(t, err)
	testkit.EventuallyEqual(t, members.Soon, func() string { return cmp.Diff(want.All(), w.Snapshot().All(), cmpopts.EquateEmpty()) }, "")
}

// Goroutines read snapshots while changes arrive. The race detector
// checks the memory accesses, the test checks the contents.
func TestSnapshotsAreImmutable(t *testing.T) {
	t.Parallel()
	prober := members.NewProber()
	cli, l, w := following(t, members.Probing(t, prober, ""))
	const n = 20
	for i := range n {
		prober.Answer(fmt.Sprintf("127.0.0.1:%d", 8100+i), "m")
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				s := w.Snapshot()
				before := describe(s)
				// Meanwhile others are published; this one must not change.
				select {
				case <-s.Changed():
				case <-stop:
				}
				if after := describe(s); before != after {
					t.Errorf("a snapshot changed:\n%s\n%s", before, after)
					return
				}
			}
		})
	}
	for i := range 300 {
		k := members.Prefill(fmt.Sprintf("127.0.0.1:%d", 8100+i%n))
		switch i % 4 {
		case 0:
			members.Put(t, cli, l.Instance(k), "")
		case 1:
			members.Put(t, cli, l.Override(k), fmt.Sprintf(`{"weight":%d}`, i))
		case 2:
			members.Put(t, cli, l.Instance(k), `{"models":["m"],"labels":{"a":"b"}}`)
		default:
			members.Del(t, cli, l.Instance(k))
		}
	}
	close(stop)
	wg.Wait()
}

func describe(s *instance.Snapshot) string {
	var b strings.Builder
	for _, in := range s.All() {
		fmt.Fprintf(&b, "%+v;", in.List())
		if in.Record.Weight != nil {
			fmt.Fprintf(&b, "%d", *in.Record.Weight)
		}
	}
	return b.String()
}

// instances returns a listing of n instances as agents write them.
func instances(n int) []*mvccpb.KeyValue {
	kvs := make([]*mvccpb.KeyValue, 0, n)
	for i := range n {
		kvs = append(kvs, instanceKV(i))
	}
	return kvs
}

func instanceKV(i int) *mvccpb.KeyValue {
	role := []string{"prefill", "decode"}[i%2]
	address := fmt.Sprintf("10.%d.%d.%d:8100", i>>16&255, i>>8&255, i&255)
	value := fmt.Sprintf(`{"v":1,"id":"01JD%022d","role":%q,"address":%q,"scheme":"http","models":["Qwen/Qwen2.5-7B-Instruct"],"connector":"nixl","kv_role":"kv_producer","engine_ids":{"0":"e-%d"},"ports":{"side_channel":[5600]},"tp_size":4,"block_size":16,"max_model_len":32768,"version":"0.12.0","weight":100,"state":"ready","source":"agent","host_id":"host-%d","agent":"pd-agent/0.1.0"}`, i, role, address, i, i)
	e := kv("/pd/"+role+"/"+address, value, int64(i+2))
	e.Lease = int64(1000 + i)
	return e
}

func BenchmarkBuild(b *testing.B) {
	l := members.Layout(b)
	for _, n := range []int{10, 1000, 10000} {
		kvs := instances(n)
		b.Run(fmt.Sprintf("instances=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				require.Len(b, watch.Build(l, kvs, int64(n), verify.Facts{}).All(), n)
			}
		})
	}
}
