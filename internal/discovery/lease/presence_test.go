package lease_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/cli/background"
	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

func TestPresence(t *testing.T) {
	t.Parallel()
	cli, l := etcdtest.Start(t).Client(t), members.Layout(t)
	store := store.New(cli, l, "test")
	var mu sync.Mutex
	applied := int64(7)
	p := lease.NewPresence(cli, lease.PresenceOptions{
		Layout: l, ID: "p1", Address: "127.0.0.1:8000", Version: "1", TTL: members.TTL, Interval: 10 * time.Millisecond,
		Applied: func() int64 { mu.Lock(); defer mu.Unlock(); return applied },
		Report:  func() (r lease.Report) { return r },
	})
	stop := background.Start(t.Context(), p.Run)
	first := published(t, store, func(p *lease.ProxyPresence) bool {
		return p.ID == "p1" && p.Applied == 7 && p.Address == "127.0.0.1:8000" && slices.Equal(p.Documents, schema.Folders())
	})
	mu.Lock()
	applied = 9
	mu.Unlock()
	published(t, store, func(p *lease.ProxyPresence) bool { return p.Applied == 9 && p.Revision != first.Revision })
	// A lost lease is replaced.
	resp, err := cli.Get(t.Context(), l.Proxy("p1"))
	require.NoError(t, err)
	old := resp.Kvs[0].Lease
	_, err = cli.Revoke(t.Context(), clientv3.LeaseID(old))
	require.NoError(t, err)
	published(t, store, func(*lease.ProxyPresence) bool { return true })
	stop()
	testkit.EventuallyTrue(t, members.Soon, func() bool {
		ps, err := store.Reader.Proxies(t.Context())
		return err == nil && len(ps) == 0
	}, "the presence outlives its proxy")
}

// published waits until etcd has the presence of one proxy, as wanted.
func published(t testing.TB, st *store.Store, want func(*lease.ProxyPresence) bool) *lease.ProxyPresence {
	t.Helper()
	var ps []lease.ProxyPresence
	testkit.Eventually(t, members.Soon, func() (err error) {
		if ps, err = st.Reader.Proxies(t.Context()); err != nil || len(ps) != 1 || !want(&ps[0]) {
			return fmt.Errorf("%+v, %v", ps, err)
		}
		return nil
	})
	return &ps[0]
}

// reporting starts an etcd and the presence of a proxy with reports.
func reporting(t *testing.T, report func() lease.Report) *store.Store {
	t.Helper()
	cli, l := etcdtest.Start(t).Client(t), members.Layout(t)
	members.Run(t, lease.NewPresence(cli, lease.PresenceOptions{
		Layout: l, ID: "p1", TTL: time.Hour, Interval: 5 * time.Millisecond, Connector: "nixl",
		Applied: func() int64 { return 0 }, Report: report,
	}).Run)
	return store.New(cli, l, "test")
}

// The report of a proxy is written when it changes, also if neither its revision nor its lease changes.
func TestPresence_Findings(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	unverified := map[string]string{}
	store := reporting(t, func() lease.Report {
		mu.Lock()
		defer mu.Unlock()
		return lease.Report{Unverified: maps.Clone(unverified)}
	})
	says := func(key, want string) {
		t.Helper()
		published(t, store, func(p *lease.ProxyPresence) bool {
			return p.Unverified != nil && p.Unverified[key] == want && p.Connector == "nixl"
		})
	}
	const key = "decode/10.0.0.7:1"
	says(key, "")
	mu.Lock()
	unverified[key] = "no answer yet"
	mu.Unlock()
	says(key, "no answer yet")
}

// Notices are written when they change. Growing counts are not a
// change: a proxy does not write for each of its requests.
func TestPresence_Notices(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	var name atomic.Value
	name.Store("a")
	store := reporting(t, func() lease.Report {
		n := asked.Add(1)
		return lease.Report{
			Notices:    []string{fmt.Sprintf("%s: %d requests", name.Load(), n)},
			Instances:  map[string]lease.InstanceReport{"decode/10.0.0.7:1": {Reason: fmt.Sprintf("no response for %ds", n)}},
			NotServing: fmt.Sprintf("%d decode instances are registered, but none can be used: nothing is served", n),
		}
	})
	says := func(begin string) (revision int64) {
		t.Helper()
		return published(t, store, func(p *lease.ProxyPresence) bool {
			return len(p.Notices) == 1 && strings.HasPrefix(p.Notices[0], begin)
		}).Revision
	}
	first, before := says("a: "), asked.Load()
	testkit.EventuallyTrue(t, members.Soon, func() bool { return asked.Load() >= before+20 },
		"not asked often enough yet")
	assert.Equal(t, first, says("a: "), "revision")
	name.Store("b")
	says("b: ")
}

// The report about a large fleet may have more bytes than an instance's value may have.
func TestPresenceOfLargeFleet(t *testing.T) {
	t.Parallel()
	var all []*instance.Instance
	for i := range 300 {
		all = append(all, &instance.Instance{
			Key: members.Decode(fmt.Sprintf("10.0.%d.%d:8200", i/200, i%200)), Verified: true, Learned: true,
			Record: instance.Record{Models: []string{"org/model"}, Version: "0.12.0"},
		})
	}
	store := reporting(t, func() (r lease.Report) {
		r.Instances, r.LeftOut = lease.NewInstanceReports(instance.NewSnapshot(1, all), func(instance.Key) instance.Opinion { return instance.Opinion{} })
		return r
	})
	published(t, store, func(p *lease.ProxyPresence) bool { return len(p.Instances) == len(all) })
}
