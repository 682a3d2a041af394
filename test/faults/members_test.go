package faults_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/watch"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/longform"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

func prefillAt(i int) instance.Key {
	return instance.Key{Role: instance.Prefill, Address: fmt.Sprintf("10.%d.%d.%d:8100", i>>16&255, i>>8&255, i&255)}
}

func decodeAt(i int) instance.Key {
	return instance.Key{Role: instance.Decode, Address: prefillAt(i).Address}
}

// watching starts a watcher and waits for its first list.
func watching(t testing.TB, cli *clientv3.Client, o watch.Options) *watch.Watcher {
	t.Helper()
	o.Layout = members.Layout(t)
	w := members.Watch(t, cli, o)
	members.WaitReady(t, w)
	return w
}

// register registers an instance.
func register(t testing.TB, cli *clientv3.Client, k instance.Key, ttl time.Duration) *lease.Registrar {
	t.Helper()
	o := members.RegistrarOptions(t, k)
	o.TTL = ttl
	r := members.Register(t, cli, o)
	r.Set(instance.Record{ID: "A", Models: []string{"m"}})
	members.WaitPhase(t, r, lease.Registered)
	return r
}

// awaitUsable waits until the instance may be picked.
func awaitUsable(t testing.TB, w *watch.Watcher, k instance.Key) *instance.Instance {
	t.Helper()
	return members.WaitFor(t, w, k, members.Usable)
}

// ticker writes an increasing number into one record and follows that record in the snapshots of a
// watcher.
type ticker struct {
	t    testing.TB
	w    *watch.Watcher
	k    instance.Key
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu      sync.Mutex // guards all below
	written int64      // highest number acknowledged by etcd
	longest time.Duration
	last    time.Time
}

const tickEvery = 50 * time.Millisecond

func startTicker(t testing.TB, cli *clientv3.Client, w *watch.Watcher, k instance.Key) *ticker {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	x := &ticker{t: t, w: w, k: k, stop: cancel, last: time.Now()}
	l := members.Layout(t)
	x.wg.Go(func() {
		tick := time.NewTicker(tickEvery)
		defer tick.Stop()
		for n := int64(1); ctx.Err() == nil; n++ {
			rec := instance.Record{ID: "T", Models: []string{"m"}, Labels: map[string]string{"n": strconv.FormatInt(n, 10)}}
			value, err := schema.EncodeRecord(rec)
			if err != nil {
				t.Errorf("encode: %v", err)
				return
			}
			cctx, done := context.WithTimeout(ctx, 2*time.Second)
			_, err = cli.Put(cctx, l.Instance(k), string(value))
			done()
			if err == nil {
				x.mu.Lock()
				x.written = n
				x.mu.Unlock()
			}
			select {
			case <-ctx.Done():
			case <-tick.C:
			}
		}
	})
	x.wg.Go(func() {
		instance.Follow(ctx, w.Snapshot, func(old, _ *instance.Snapshot) {
			if old == nil {
				return
			}
			now := time.Now()
			x.mu.Lock()
			x.longest, x.last = max(x.longest, now.Sub(x.last)), now
			x.mu.Unlock()
		})
	})
	t.Cleanup(x.end)
	return x
}

func (x *ticker) end() { x.stop(); x.wg.Wait() }

// awaitNewer waits until the watcher has a number that was written after the call, and a few more. One
// number proves nothing: the watch may deliver it before its writer receives the acknowledgement.
func (x *ticker) awaitNewer() {
	x.t.Helper()
	x.mu.Lock()
	from := x.written + 5
	x.mu.Unlock()
	testkit.Eventually(x.t, soon, func() error {
		if n := x.seen(); n <= from {
			return fmt.Errorf("the watcher has number %d, etcd had %d: %+v", n, from, x.w.Status())
		}
		return nil
	})
}

// seen returns the number that the watcher has, 0 before the first.
func (x *ticker) seen() int64 {
	in, ok := x.w.Snapshot().Lookup(x.k)
	if !ok {
		return 0
	}
	n, err := strconv.ParseInt(in.Record.Labels["n"], 10, 64)
	assert.NoError(x.t, err, "label of %s", x.k)
	return n
}

// restart discards the gaps recorded so far.
func (x *ticker) restart() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.longest, x.last = 0, time.Now()
}

// settle stops the writer, checks that its last number has arrived, and returns the longest time
// without a new snapshot.
func (x *ticker) settle() time.Duration {
	x.t.Helper()
	x.awaitNewer()
	x.mu.Lock()
	gap := x.longest
	x.mu.Unlock()
	x.end()
	testkit.Eventually(x.t, soon, func() error {
		if n := x.seen(); n < x.written { // the last write may have been applied without an acknowledgement
			return fmt.Errorf("etcd has number %d, the watcher %d", x.written, n)
		}
		return nil
	})
	return gap
}

// checking returns the options of a watcher with the checks that the proxies of these tests use.
func checking() watch.Options { return watch.Options{AuditInterval: audit} }

// pingsOnly turns off all checks but the pings of the connection.
func pingsOnly() watch.Options {
	return watch.Options{AuditInterval: time.Hour, CheckInterval: time.Hour}
}

// memberFault tests rows 5 to 7: the member that serves the watch fails while one instance registers
// and another changes continuously.
func memberFault(t *testing.T, leader bool, o watch.Options, fault func(*etcdtest.Server, *testkit.Link)) (gap time.Duration) {
	t.Helper()
	c := etcdtest.StartCluster(t, 3)
	victim := c.Follower()
	if leader {
		victim = c.Leader()
	}
	cli, link, all := members.OnMember(t, c, victim)
	w := watching(t, cli, o)
	kept := prefillAt(1)
	var others []string
	for _, m := range c.Others(victim) {
		others = append(others, m.Endpoint())
	}
	r := register(t, members.Dial(t, append(others, victim.Endpoint())...), kept, schema.DefaultTTL)
	before := awaitUsable(t, w, kept)
	members.NeverWithout(t, w, kept)
	x := startTicker(t, etcdtest.Client(t, others...), w, prefillAt(2))
	x.awaitNewer()
	all() // from now on the watch may move to another member
	members.WaitState(t, w, watch.Live)
	x.awaitNewer()
	x.restart()
	fault(victim, link)
	x.awaitNewer()
	gap = x.settle()
	members.WaitState(t, w, watch.Live)
	members.WaitPhase(t, r, lease.Registered)
	s := r.Status()
	assert.True(t, s.LeasesLost == 0 && s.LeaseID == before.Lease, "the lease was lost: %+v", s)
	if after := awaitUsable(t, w, kept); after.Lease != before.Lease || after.Version != before.Version {
		t.Errorf("before %+v, after %+v", before, after)
	}
	return gap
}

func TestFault05_FollowerKilled(t *testing.T) {
	row(t, 5)
	gap := memberFault(t, false, checking(), func(m *etcdtest.Server, _ *testkit.Link) { m.Kill() })
	measured(t, 5, "longest gap between two events", gap, time.Second)
}

func TestFault06_LeaderKilled(t *testing.T) {
	row(t, 6)
	gap := memberFault(t, true, checking(), func(m *etcdtest.Server, _ *testkit.Link) { m.Kill() })
	measured(t, 6, "longest gap between two events", gap, 4*time.Second)
}

func TestFault07_MemberHangs(t *testing.T) {
	longform.Test(t)
	row(t, 7)
	for _, tc := range []struct {
		name  string
		fault func(*etcdtest.Server, *testkit.Link)
	}{
		{"paused", func(m *etcdtest.Server, _ *testkit.Link) { m.Pause() }},
		{"blackhole", func(_ *etcdtest.Server, l *testkit.Link) { l.Freeze() }},
		{"half open", func(_ *etcdtest.Server, l *testkit.Link) { l.HalfOpen() }},
		{"one way", func(_ *etcdtest.Server, l *testkit.Link) { l.OneWay(testkit.ToClient) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			gap := memberFault(t, false, checking(), tc.fault)
			measured(t, 7, tc.name+": longest gap, audit each 2 s", gap, 5*time.Second)
		})
		t.Run(tc.name+", keepalive alone", func(t *testing.T) {
			t.Parallel()
			gap := memberFault(t, false, pingsOnly(), tc.fault)
			measured(t, 7, tc.name+": longest gap, keepalive alone", gap, 15*time.Second)
		})
	}
}
