package loaddigest_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/cli/background"
	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/discovery/loaddigest"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

// proxy publishes a load that a test sets.
type proxy struct {
	mu      sync.Mutex
	entries []schema.LoadEntry
	applied int64
	prompts []byte
	changed chan struct{}
	looks   atomic.Int64
	stop    func()
}

func (p *proxy) set(applied int64, entries ...schema.LoadEntry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.applied, p.entries = applied, entries
	close(p.changed)
	p.changed = make(chan struct{})
}

func publishing(t *testing.T, cli *clientv3.Client, id string, ttl, interval time.Duration) *proxy {
	t.Helper()
	p := &proxy{changed: make(chan struct{})}
	presence := lease.NewPresence(cli, lease.PresenceOptions{
		Layout: members.Layout(t), ID: id, TTL: ttl, Interval: interval,
		Applied: func() int64 { return 0 }, Report: func() (r lease.Report) { return r },
		Load: &loaddigest.Source{
			Applied: func() int64 { p.mu.Lock(); defer p.mu.Unlock(); return p.applied },
			InFlight: func() []schema.LoadEntry {
				p.looks.Add(1)
				p.mu.Lock()
				defer p.mu.Unlock()
				return append([]schema.LoadEntry{}, p.entries...)
			},
			Changed:    func() <-chan struct{} { p.mu.Lock(); defer p.mu.Unlock(); return p.changed },
			HasPrompts: func() bool { p.mu.Lock(); defer p.mu.Unlock(); return len(p.prompts) > 0 },
			TakePrompts: func(most int) []byte {
				p.mu.Lock()
				defer p.mu.Unlock()
				taken := p.prompts[:min(most, len(p.prompts))]
				p.prompts = nil
				return taken
			},
		},
	})
	p.stop = background.Start(t.Context(), presence.Run)
	t.Cleanup(p.stop)
	return p
}

func following(t *testing.T, cli *clientv3.Client) *loaddigest.Watcher {
	t.Helper()
	w := loaddigest.NewWatcher(cli, members.Layout(t), nil)
	run(t, w)
	return w
}

// run runs w until the end of the test or of stop.
func run(t *testing.T, w *loaddigest.Watcher) (stop func()) {
	t.Helper()
	stop = background.Start(t.Context(), w.Run)
	t.Cleanup(stop)
	return stop
}

func leg(k string, n int64, leaving bool) schema.LoadEntry {
	return schema.LoadEntry{Key: members.Decode(k), LoadCount: schema.LoadCount{InFlight: n, Waiting: n, Held: n}, Leaving: leaving}
}

// hungOnce is a member that does not answer the creation of the first watch.
type hungOnce struct {
	clientv3.Watcher
	once sync.Once
}

func (h *hungOnce) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	h.once.Do(func() { <-ctx.Done() })
	return h.Watcher.Watch(ctx, key, opts...)
}

func TestWatcher_LeavesHungMember(t *testing.T) {
	t.Parallel()
	cli, l := etcdtest.Start(t).Client(t), members.Layout(t)
	cli.Watcher = &hungOnce{Watcher: cli.Watcher}
	members.Put(t, cli, l.Load("a"), `{"v":1,"applied":1}`)
	w := following(t, cli)
	applied := func(want int64) {
		t.Helper()
		testkit.Until(t, members.Soon, w.All, func(all []*loaddigest.ProxyLoad) bool {
			return len(all) == 1 && all[0].Applied == want
		})
	}
	applied(1)
	members.Put(t, cli, l.Load("a"), `{"v":1,"applied":2}`) // after the list
	applied(2)
}

// The digest of a wiped etcd may have the revision of the former one.
func TestWatcher_SameRevisionInAWipedEtcd(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	cli, l := server.Client(t), members.Layout(t)
	w := loaddigest.NewWatcher(cli, l, nil)
	var revisions []int64
	for _, applied := range []int64{1, 2} {
		var revision int64
		testkit.Eventually(t, members.Soon, func() error {
			lease, err := cli.Grant(t.Context(), 60)
			if err != nil {
				return err
			}
			resp, err := cli.Put(t.Context(), l.Load("a"), fmt.Sprintf(`{"v":1,"applied":%d}`, applied), clientv3.WithLease(lease.ID))
			if err == nil {
				revision = resp.Header.Revision
			}
			return err
		})
		revisions = append(revisions, revision)
		stop := run(t, w)
		testkit.Until(t, members.Soon, w.All, func(all []*loaddigest.ProxyLoad) bool {
			return len(all) == 1 && all[0].Applied == applied
		})
		stop()
		server.Wipe()
		server.Restart()
	}
	assert.Equal(t, revisions[1], revisions[0], "revisions %d", revisions)
}

// The watch of a wiped etcd delivers nothing until the new revision exceeds the former one.
func TestWatcher_Relist(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	cli, l := server.Client(t), members.Layout(t)
	for range 100 {
		members.Put(t, cli, "/other", "")
	}
	members.Put(t, cli, l.Load("old"), `{"v":1,"applied":1}`)
	w := following(t, cli)
	knows := func(within time.Duration, id string) {
		t.Helper()
		testkit.Until(t, within, w.All, func(all []*loaddigest.ProxyLoad) bool {
			return len(all) == 1 && all[0].ID == id
		})
	}
	knows(members.Soon, "old")
	server.Wipe()
	server.Restart()
	members.Put(t, server.Client(t), l.Load("new"), `{"v":1,"applied":2}`)
	w.Relist()
	knows(members.Soon/2, "new") // the next list is due after about a minute
}

// Each of three proxies knows the sum of the load of the two
// others; when one ends, its share is removed with its key.
func TestLoadsOfThree(t *testing.T) {
	t.Parallel()
	cli := etcdtest.Start(t).Client(t)
	proxies := map[string]*proxy{}
	for i, id := range []string{"a", "b", "c"} {
		proxies[id] = publishing(t, cli, id, members.TTL, 10*time.Millisecond)
		proxies[id].set(7, leg("d:1", int64(1+i), false), leg("d:2", int64(10*i), false))
	}
	w := following(t, cli)
	sums := func(own string, d1, d2 float64) {
		t.Helper()
		testkit.Eventually(t, members.Soon, func() error {
			got := loaddigest.Sum(w.All(), own, time.Now())
			if got["d:1"].InFlight != d1 || got["d:2"].InFlight != d2 || got["d:1"].Held != d1 || got["d:1"].Waiting != d1 {
				return fmt.Errorf("%s: %+v", own, got)
			}
			return nil
		})
	}
	sums("a", 5, 30)
	sums("b", 4, 20)
	sums("c", 3, 10)
	changed := w.Changed()
	proxies["c"].stop()
	select {
	case <-changed:
	case <-time.After(members.Soon):
		t.Error("Changed was not closed when a proxy left")
	}
	sums("a", 2, 10)
	testkit.Until(t, members.Soon, w.All, func(all []*loaddigest.ProxyLoad) bool {
		return !slices.ContainsFunc(all, func(p *loaddigest.ProxyLoad) bool { return p.Applied != 7 || p.Ignored != "" })
	})
	// A digest of a newer schema is ignored, and shown as ignored.
	members.Put(t, cli, members.Layout(t).Load("newer"), `{"v":2,"load":{"decode/d:1":{"in_flight":9}}}`)
	testkit.Until(t, members.Soon, w.All, func(all []*loaddigest.ProxyLoad) bool {
		return slices.ContainsFunc(all, func(p *loaddigest.ProxyLoad) bool { return p.ID == "newer" && p.Ignored != "" })
	})
	sums("a", 2, 10)
	// The key of a vanished proxy, and with it its share, is removed when its lease expires.
	id := members.Lease(t, cli, 60)
	members.Put(t, cli, members.Layout(t).Load("d"), `{"v":1,"load":{"decode/d:1":{"in_flight":5,"waiting_tokens":5,"held_tokens":5}}}`, clientv3.WithLease(id))
	sums("a", 7, 10)
	_, err := cli.Revoke(t.Context(), id)
	require.NoError(t, err)
	sums("a", 2, 10)
}

// A proxy with nothing in flight still has a digest. Once leaving instances
// are idle, it is published at once, although the interval is an hour.
func TestPublish_DrainedAtOnce(t *testing.T) {
	t.Parallel()
	cli := etcdtest.Start(t).Client(t)
	w := following(t, cli)
	p := publishing(t, cli, "a", members.TTL, time.Hour)
	says := func(applied int64, n int) {
		t.Helper()
		testkit.Until(t, members.Soon, w.All, func(all []*loaddigest.ProxyLoad) bool {
			return len(all) == 1 && all[0].Applied == applied && len(all[0].Load) == n
		})
	}
	// The first poll may precede the lease.
	testkit.Eventually(t, members.Soon, func() error {
		p.set(0, leg("d:1", 1, true), leg("d:2", 1, false))
		if all := w.All(); len(all) != 1 || len(all[0].Load) != 2 {
			return fmt.Errorf("%+v", all)
		}
		return nil
	})
	p.set(0, leg("d:2", 1, false))
	says(0, 1)
}

// An idle fleet writes nothing.
func TestIdleProxiesWriteNothing(t *testing.T) {
	t.Parallel()
	cli := etcdtest.Start(t).Client(t)
	w := following(t, cli)
	var proxies []*proxy
	for i := range 5 {
		// The TTL is 15 intervals, as by default, and long enough for a slow machine to keep its leases.
		p := publishing(t, cli, fmt.Sprint("p", i), members.TTL, members.TTL/15)
		p.set(3)
		proxies = append(proxies, p)
	}
	testkit.Until(t, members.Soon, w.All, func(all []*loaddigest.ProxyLoad) bool {
		return len(all) == 5 && !slices.ContainsFunc(all, func(p *loaddigest.ProxyLoad) bool { return p.Applied != 3 })
	})
	revision := func() int64 {
		resp, err := cli.Get(t.Context(), "/pd/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
		require.NoError(t, err)
		require.EqualValues(t, 10, resp.Count)
		return resp.Header.Revision
	}
	before := revision()
	var from []int64
	for _, p := range proxies {
		from = append(from, p.looks.Load())
	}
	for i, p := range proxies {
		testkit.Until(t, members.Soon, p.looks.Load, func(n int64) bool { return n >= from[i]+20 }) // more than a TTL
	}
	assert.Equal(t, before, revision(), "revision of etcd")
	// A key that was deleted is written again.
	members.Del(t, cli, members.Layout(t).Load("p1"))
	testkit.EventuallyEqual(t, members.Soon, func() int { return len(w.All()) }, 5)
}

// Placed prompts are published within the proxy's interval, once, even if nothing else has changed.
func TestPublish_Prompts(t *testing.T) {
	t.Parallel()
	cli := etcdtest.Start(t).Client(t)
	one := publishing(t, cli, "a", members.TTL, 10*time.Millisecond)
	w := following(t, cli)
	var seen loaddigest.Seen
	received := func(want string) {
		t.Helper()
		testkit.Eventually(t, members.Soon, func() error {
			for _, p := range seen.Update(w.All(), "b") {
				if string(p.Prompts) == want {
					return nil
				}
				if len(p.Prompts) > 0 {
					return fmt.Errorf("received %q", p.Prompts)
				}
			}
			return fmt.Errorf("%q was not received", want)
		})
	}
	for _, prompts := range []string{"first", "second"} {
		one.mu.Lock()
		one.prompts = []byte(prompts)
		one.mu.Unlock()
		received(prompts)
	}
	one.set(3, leg("d:1", 1, false))
	received("")
}

func TestMain(m *testing.M) {
	leak.Main(m)
}

// The weight of a digest decreases with its age, down to 0.
func TestWeight(t *testing.T) {
	t.Parallel()
	last := 1.0
	for age := time.Duration(0); age < time.Minute; age += 100 * time.Millisecond {
		is := loaddigest.Weight(age)
		require.True(t, is <= last && is >= 0, "%g at %s, after %g", is, age, last)
		last = is
	}
	assert.True(t, loaddigest.Weight(0) == 1 && loaddigest.Weight(2*loaddigest.Refresh) == 1 && last == 0,
		"a fresh digest must have weight 1, and an old one 0")
	assert.Equal(t, loaddigest.Weight(10*time.Second)/2, loaddigest.Weight(13*time.Second), "three seconds later")
}

func TestSum(t *testing.T) {
	t.Parallel()
	now := time.Now()
	of := func(id string, age time.Duration, load map[string]schema.LoadCount) *loaddigest.ProxyLoad {
		return &loaddigest.ProxyLoad{ID: id, ReceivedAt: now.Add(-age), Digest: schema.Digest{Load: load}}
	}
	c := schema.LoadCount{InFlight: 2, Waiting: 20, Held: 200}
	ignored := of("e", 0, map[string]schema.LoadCount{"decode/d:1": c})
	ignored.Ignored = "nonsense"
	got := loaddigest.Sum([]*loaddigest.ProxyLoad{
		of("own", 0, map[string]schema.LoadCount{"decode/d:1": c}),
		of("a", 0, map[string]schema.LoadCount{"decode/d:1": c, "prefill/d:1": c, "prefill/p:1": c}),
		of("b", time.Second, map[string]schema.LoadCount{"decode/d:1": c}),
		of("hangs", 10*time.Second, map[string]schema.LoadCount{"decode/d:1": c}),
		of("ended", time.Hour, map[string]schema.LoadCount{"decode/d:1": c}),
		ignored,
	}, "own", now)
	want := map[string]instance.OthersLoad{"d:1": {InFlight: 5, Waiting: 50, Held: 500}, "p:1": {InFlight: 2, Waiting: 20, Held: 200}}
	assert.True(t, maps.Equal(got, want), "%+v, want %+v", got, want)
}

func TestPresent(t *testing.T) {
	t.Parallel()
	now := time.Now()
	busy := map[string]schema.LoadCount{"decode/d:1": {InFlight: 1}}
	for _, tc := range []struct {
		name string
		one  loaddigest.ProxyLoad
		want bool
	}{
		{"its own", loaddigest.ProxyLoad{ID: "own", ReceivedAt: now, Digest: schema.Digest{Load: busy}}, false},
		{"a busy one", loaddigest.ProxyLoad{ID: "a", ReceivedAt: now, Digest: schema.Digest{Load: busy}}, true},
		{"one that hangs", loaddigest.ProxyLoad{ID: "a", ReceivedAt: now.Add(-time.Hour), Digest: schema.Digest{Load: busy}}, false},
		{"an idle one, which writes nothing", loaddigest.ProxyLoad{ID: "a", ReceivedAt: now.Add(-time.Hour)}, true},
		{"one that is not understood", loaddigest.ProxyLoad{ID: "a", ReceivedAt: now, Ignored: "newer"}, false},
	} {
		assert.Equal(t, tc.want, loaddigest.Present([]*loaddigest.ProxyLoad{&tc.one}, "own", now), tc.name)
	}
	assert.False(t, loaddigest.Present(nil, "own", now), "another proxy without digests")
}

func TestSeen(t *testing.T) {
	t.Parallel()
	own, a, b := &loaddigest.ProxyLoad{ID: "own"}, &loaddigest.ProxyLoad{ID: "a"}, &loaddigest.ProxyLoad{ID: "b", Ignored: "nonsense"}
	var s loaddigest.Seen
	got := s.Update([]*loaddigest.ProxyLoad{own, a, b}, "own")
	assert.True(t, len(got) == 1 && got[0] == a, "%v", got)
	assert.Len(t, s.Update([]*loaddigest.ProxyLoad{own, a, b}, "own"), 0, "again")
	next := &loaddigest.ProxyLoad{ID: "a"}
	got = s.Update([]*loaddigest.ProxyLoad{own, next}, "own")
	assert.True(t, len(got) == 1 && got[0] == next, "%v", got)
}

// The first schema.KeyRates numbers of a key lose weight as their digest grows old. They keep it if this
// proxy's digest is old, too: then etcd is unreachable. The numbers after them never lose weight.
func TestKeys(t *testing.T) {
	t.Parallel()
	demand, now := map[string][]int64{"a": {8, 4, 0, 0, 0, 0, 0, 0, 2, 6}}, time.Now()
	age := func(id string, d time.Duration) *loaddigest.ProxyLoad {
		return &loaddigest.ProxyLoad{ID: id, ReceivedAt: now.Add(-d), Digest: schema.Digest{Keys: demand}}
	}
	for own, want := range map[time.Duration]string{0: "a:[4 2 0 0 0 0 0 0 1 6]", 10 * time.Second: "a:[8 4 0 0 0 0 0 0 2 6]"} {
		got := loaddigest.Keys([]*loaddigest.ProxyLoad{
			age("own", own), age("old", 10*time.Second), {ID: "before", ReceivedAt: now}, {ID: "newer", Ignored: "nonsense"},
		}, "own", now)
		assert.Equal(t, "map[before:map[] old:map["+want+"] own:map[a:[8 4 0 0 0 0 0 0 2 6]]]", fmt.Sprint(got), got)
	}
}
