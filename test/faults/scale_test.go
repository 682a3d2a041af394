package faults_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/watch"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/longform"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

// fleetSize returns the number of instances in the tests of large fleets: that of the matrix for the
// report, fewer otherwise.
func fleetSize() int {
	if long() || os.Getenv("PD_TEST_FAULT_REPORT") != "" {
		return 10000
	}
	return 1000
}

// registerMany writes n leased records, half of them prefill, and returns the time of the last
// acknowledgement.
func registerMany(t testing.TB, cli *clientv3.Client, n int, ttl int64) (leases []clientv3.LeaseID, last time.Time) {
	t.Helper()
	l := members.Layout(t)
	leases = make([]clientv3.LeaseID, n)
	var next atomic.Int64
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && failed.Load() == nil; i = int(next.Add(1)) - 1 {
				if err := registerOne(t.Context(), cli, l, i, ttl, &leases[i]); err != nil {
					failed.Store(&err)
				}
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		t.Fatal(*err)
	}
	return leases, time.Now()
}

func keyAt(i int) instance.Key {
	if i%2 == 0 {
		return prefillAt(i)
	}
	return decodeAt(i)
}

// keysTo returns the first n keys.
func keysTo(n int) (all []instance.Key) {
	for i := range n {
		all = append(all, keyAt(i))
	}
	return all
}

func registerOne(ctx context.Context, cli *clientv3.Client, l schema.Layout, i int, ttl int64, into *clientv3.LeaseID) error {
	value, err := schema.EncodeRecord(instance.Record{
		ID: fmt.Sprintf("01JD0000000000000000%06d", i), Models: []string{"Qwen/Qwen2.5-7B-Instruct"}, Connector: "nixl",
		KVRole: "kv_producer", Version: "0.12.0", MaxModelLen: 32768, Source: "agent", HostID: "0123456789abcdef",
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	lease, err := cli.Grant(ctx, ttl)
	if err != nil {
		return err
	}
	*into = lease.ID
	_, err = cli.Put(ctx, l.Instance(keyAt(i)), string(value), clientv3.WithLease(lease.ID))
	return err
}

func count(s *instance.Snapshot) int {
	return len(s.Usable(instance.Prefill)) + len(s.Usable(instance.Decode))
}

// awaitCount waits until a watcher has n usable instances.
func awaitCount(t testing.TB, w *watch.Watcher, n int) {
	t.Helper()
	testkit.EventuallyEqual(t, soon, func() int { return count(w.Snapshot()) }, n, "instances")
}

// converge registers n instances while watchers run and returns the time from the last
// acknowledgement until the last watcher has all of them.
func converge(t testing.TB, n, watchers int) time.Duration {
	t.Helper()
	etcd := etcdtest.Start(t)
	var list []*watch.Watcher
	for range watchers {
		list = append(list, watching(t, members.Dial(t, etcd.Endpoint()), watch.Options{}))
	}
	_, acked := registerMany(t, etcd.Client(t), n, 600)
	for _, w := range list {
		awaitCount(t, w, n)
	}
	took := time.Since(acked)
	first := list[0].Snapshot()
	for _, w := range list[1:] {
		for _, in := range w.Snapshot().All() {
			if other, ok := first.Lookup(in.Key); !ok || other.ModRevision != in.ModRevision {
				t.Fatalf("two watchers differ in %s: %+v, %+v", in.Key, in, other)
			}
		}
	}
	return took
}

// alive is a prober for which every instance answers.
type alive struct{}

func (alive) Probe(context.Context, *instance.Instance) (instance.Facts, error) {
	return instance.Facts{Models: []string{"Qwen/Qwen2.5-7B-Instruct"}}, nil
}

// expire revokes n leases together and checks that no instance is lost while its engine answers.
func expire(t testing.TB, n int) {
	t.Helper()
	etcd := etcdtest.Start(t)
	w := watching(t, members.Dial(t, etcd.Endpoint()), watch.Options{Prober: alive{}})
	cli := etcd.Client(t)
	leases, _ := registerMany(t, cli, n, 600)
	awaitCount(t, w, n)
	var wg sync.WaitGroup
	var next atomic.Int64
	for range 8 { // as etcd does when it resumes after a pause: it revokes all of them
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				_, err := cli.Revoke(ctx, leases[i])
				cancel()
				if err != nil {
					t.Errorf("revoke: %v", err)
					return
				}
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() { wg.Wait(); cancel() }()
	instance.Await(ctx, w.Snapshot, func(s *instance.Snapshot) bool {
		got := count(s)
		assert.GreaterOrEqual(t, got, n, "at revision %d %d instances are left of %d whose probes pass", s.Revision, got, n)
		return got < n
	})
	<-ctx.Done()
	testkit.Eventually(t, soon, func() error { // all deletions have been applied
		resp, err := cli.Get(t.Context(), members.Layout(t).Root(), clientv3.WithCountOnly())
		if err != nil || w.Status().Revision < resp.Header.Revision {
			return fmt.Errorf("the watcher is at %d, %w", w.Status().Revision, err)
		}
		return nil
	})
	if got := count(w.Snapshot()); got != n {
		t.Errorf("%d instances are left of %d whose probes pass", got, n)
	}
}

// A benchmark, which does not share the machine, measures the time of a pick during the expiries.
func TestFault17_ManyExpiries(t *testing.T) {
	longform.Test(t)
	row(t, 17)
	expire(t, fleetSize())
}

// putToSnapshot changes records of a fleet of n instances and reports the time until the slowest of
// several watchers has published each change.
func putToSnapshot(t testing.TB, size, watchers, puts int) (p50, p99 time.Duration) {
	t.Helper()
	etcd := etcdtest.Start(t)
	cli, l := etcd.Client(t), members.Layout(t)
	registerMany(t, cli, size, 600)
	var list []*watch.Watcher
	for range watchers {
		w := watching(t, members.Dial(t, etcd.Endpoint()), watch.Options{})
		awaitCount(t, w, size)
		list = append(list, w)
	}
	var took []time.Duration
	tick := time.NewTicker(20 * time.Millisecond) // spaced, as real changes are
	defer tick.Stop()
	for i := range puts {
		<-tick.C
		start := time.Now()
		rev := members.Put(t, cli, l.Instance(decodeAt(1<<17+i%10)), members.Ready)
		for _, w := range list {
			ctx, cancel := context.WithTimeout(t.Context(), soon)
			arrived := instance.Await(ctx, w.Snapshot, func(s *instance.Snapshot) bool { return s.Revision >= rev })
			cancel()
			if !arrived {
				t.Fatalf("revision %d does not arrive: %+v", rev, w.Status())
			}
		}
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	return took[len(took)/2], took[len(took)*99/100]
}

// One put reaches a thousand watchers.
func TestFault24_ManyWatchers(t *testing.T) {
	longform.Test(t)
	rowAlone(t, 24)
	etcd := etcdtest.Start(t)
	const watchers = 1000
	connections := watchers
	if fleetSize() < 10000 {
		connections = 50 // few connections, since only the number of streams matters
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	clients := make([]*clientv3.Client, connections)
	for i := range clients {
		clients[i] = etcdtest.Client(t, etcd.Endpoint())
	}
	got := make(chan time.Time, watchers)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for i := range watchers {
		ch := clients[i%connections].Watch(ctx, "/pd/", clientv3.WithPrefix(), clientv3.WithCreatedNotify(), clientv3.WithFragment())
		if resp := <-ch; resp.Err() != nil || !resp.Created {
			t.Fatalf("watch %d: %+v", i, resp)
		}
		wg.Go(func() {
			for resp := range ch {
				for range resp.Events {
					got <- time.Now()
				}
			}
		})
	}
	cli := etcd.Client(t)
	var worst time.Duration
	for i := range 20 {
		start := time.Now()
		members.Put(t, cli, members.Layout(t).Instance(prefillAt(i)), members.Ready)
		for n := range watchers {
			select {
			case at := <-got:
				worst = max(worst, at.Sub(start))
			case <-time.After(soon):
				t.Fatalf("put %d reached %d of %d watchers", i, n, watchers)
			}
		}
	}
	measured(t, 24, fmt.Sprintf("one put to the last of 1000 watchers on %d connections, worst of 20", connections), worst, 200*time.Millisecond)
}

// A blocked reader does not block the watch: the newest snapshot replaces older ones, which are not
// kept.
func TestFault26_SlowReader(t *testing.T) {
	longform.Test(t)
	row(t, 26)
	etcd := etcdtest.Start(t)
	cli, l := etcd.Client(t), members.Layout(t)
	w := watching(t, members.Dial(t, etcd.Endpoint()), quick())
	for i := range 200 {
		members.Put(t, cli, l.Instance(prefillAt(i)), members.Ready)
	}
	awaitCount(t, w, 200)
	held := w.Snapshot() // never read again before the end
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	var last int64
	for i := range 3000 {
		last = members.Put(t, cli, l.Instance(prefillAt(i%200)), members.Ready)
	}
	testkit.EventuallyEqual(t, soon, func() int64 { return w.Snapshot().Revision }, last, "revision")
	assert.True(t, held.Revision < last && len(held.All()) == 200,
		"the snapshot that is held has changed: revision %d", held.Revision)
	// A snapshot of 200 instances is about 100 KB: 3000 of them would be 300 MB.
	counted(t, 26, "growth of the heap over 3000 unread changes, MiB", max(0, heap()-before)>>20, 32)
	assert.Equal(t, last, w.Status().Revision, "status at revision")
}

// A hundred reconnects leak no goroutine.
func TestFault27_Reconnects(t *testing.T) {
	longform.Test(t)
	row(t, 27)
	server := etcdtest.Start(t)
	link := testkit.StartLink(t, server.Endpoint())
	l := members.Layout(t)
	direct := server.Client(t)
	members.Put(t, direct, l.Instance(prefillAt(0)), members.Ready)
	func() { // TestMain checks for leaked goroutines
		cli, err := etcd.Dial(etcd.Config{Endpoints: []string{link.Address()}})
		require.NoError(t, err)
		defer cli.Close()
		ctx, cancel := context.WithCancel(t.Context())
		o := quick()
		o.Layout, o.Prober = l, alive{}
		w := watch.New(cli, o)
		r := lease.NewRegistrar(cli, lease.RegistrarOptions{Layout: l, Key: decodeAt(0), TTL: ttl, HostID: "h"})
		r.Set(instance.Record{ID: "A", Models: []string{"m"}})
		var wg sync.WaitGroup
		wg.Go(func() { w.Run(ctx) })
		wg.Go(func() { r.Run(ctx) })
		defer wg.Wait()
		defer cancel()
		for i := range 100 {
			link.Reset()
			k := prefillAt(1 + i%10)
			rev := members.Put(t, direct, l.Instance(k), members.Ready)
			members.WaitFor(t, w, k, members.Is(func(in *instance.Instance) bool { return in.ModRevision >= rev }))
		}
	}()
}

func BenchmarkRegistrations10000(b *testing.B) {
	for b.Loop() {
		took := converge(b, 10000, 10)
		b.ReportMetric(took.Seconds(), "s-after-last-ack")
		measured(b, 101, "last acknowledgement to all equal", took, 2*time.Second)
	}
}

func BenchmarkPutToSnapshot1000(b *testing.B) {
	for b.Loop() {
		p50, p99 := putToSnapshot(b, 1000, 5, 300)
		b.ReportMetric(float64(p50.Microseconds())/1000, "ms-p50")
		b.ReportMetric(float64(p99.Microseconds())/1000, "ms-p99")
		measured(b, 102, "p50 of 300", p50, 0)
		measured(b, 102, "p99 of 300", p99, 10*time.Millisecond)
	}
}
