package proxy

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/discovery/loaddigest"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/watch"
	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/observe/metrics"
	"github.com/pdmesh/pdmesh/internal/proxy/config"
)

// Proxies with a backlog have a share. All others, also those of an older release,
// count by their load; while the digests are old, all count by their number.
func TestOthersOf(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e9, 0)
	digest := func(id string, age time.Duration, waiting int64, queue ...schema.QueueEntry) *loaddigest.ProxyLoad {
		d := &loaddigest.ProxyLoad{ID: id, ReceivedAt: now.Add(-age), Digest: schema.Digest{Load: map[string]schema.LoadCount{}, Queue: queue}}
		if waiting > 0 {
			d.Load["prefill/p:1"] = schema.LoadCount{InFlight: 1, Waiting: waiting}
		}
		return d
	}
	both := digest("x", 0, 300)
	both.Load["decode/p:1"] = both.Load["prefill/p:1"] // an engine in both roles has its load under each
	waits := schema.QueueEntry{Model: "m", Class: 2, Key: "a", Attained: 100, Backlog: 50}
	served := schema.QueueEntry{Model: "m", Key: "b", Attained: 100}
	ignored := digest("ignored", 0, 1000)
	ignored.Ignored = "nonsense"
	for _, tc := range []struct {
		name           string
		digests        []*loaddigest.ProxyLoad
		waits          bool
		queues, served int
		byLoad         float64
		blind          int
	}{
		{"alone", []*loaddigest.ProxyLoad{digest("own", 0, 100, waits), ignored}, true, 0, 0, 0, 0},
		{"a queue", []*loaddigest.ProxyLoad{digest("own", 0, 100), digest("x", 0, 100, waits, served)}, true, 1, 0, 0, 0},
		{"an older version", []*loaddigest.ProxyLoad{digest("own", 0, 100), digest("x", 0, 300), digest("y", 0, 100, waits)}, true, 1, 0, 0.75, 0},
		{"an engine in both roles", []*loaddigest.ProxyLoad{digest("own", 0, 100), both, digest("y", 0, 100, waits)}, true, 1, 0, 0.75, 0},
		{"no backlog", []*loaddigest.ProxyLoad{digest("own", 0, 100), digest("x", 0, 300, served)}, false, 0, 1, 1, 0},
		{"old digests", []*loaddigest.ProxyLoad{digest("own", time.Minute, 100), digest("x", time.Minute, 300, waits), digest("y", time.Minute, 0)}, false, 0, 1, 0, 2},
		{"old digests, waits", []*loaddigest.ProxyLoad{digest("own", time.Minute, 0), digest("x", time.Minute, 300)}, true, 0, 0, 0, 1},
		{"idle", []*loaddigest.ProxyLoad{digest("own", time.Minute, 0), digest("x", time.Minute, 0)}, false, 0, 0, 0, 0},
	} {
		o := othersOf(tc.digests, "own", tc.waits, now)
		if len(o.Queues) != tc.queues || len(o.Attained) != tc.served || o.ByLoad != tc.byLoad || o.Blind != tc.blind {
			t.Errorf("%s: %+v", tc.name, o)
		}
	}
	o := othersOf([]*loaddigest.ProxyLoad{digest("x", time.Minute, 0, served)}, "own", false, now)
	assert.True(t, o.Attained[0].Attained == 50, "service after its half-life: %+v", o)
}

// Sessions are read if a policy uses them, from the configured header or by the identifiers of known clients.
func TestSessions_WhenRead(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		bound                bool
		key, prefill, decode string
		want                 forward.Sessions
	}{
		{false, "x-chat", "round_robin", "least_loaded", forward.Sessions{}},
		{false, "", "round_robin", "least_loaded", forward.Sessions{}},
		{true, "x-chat", "round_robin", "least_loaded", forward.Sessions{Header: "x-chat"}},
		{true, "", "round_robin", "least_loaded", forward.Sessions{Known: true}},
		{false, "x-chat", "session", "least_loaded", forward.Sessions{Header: "x-chat"}},
		{false, "", "random", "session", forward.Sessions{Known: true}},
		{false, "", "prefix", "round_robin", forward.Sessions{Known: true}},
		{false, "x-chat", "kv_aware", "round_robin", forward.Sessions{Header: "x-chat"}},
	} {
		cfg := &config.Proxy{Choice: config.Choice{ClientBound: tc.bound, ClientBoundKey: tc.key, PrefillPolicy: tc.prefill, DecodePolicy: tc.decode}}
		assert.Equal(t, tc.want, sessions(cfg), tc)
		if kinds := policies(cfg); kinds[instance.Prefill].Name != tc.prefill || kinds[instance.Decode].Name != tc.decode {
			t.Errorf("%+v: %v", tc, kinds)
		}
	}
}

func TestStale(t *testing.T) {
	t.Parallel()
	live := watch.Status{State: watch.Live}
	kept := live
	kept.Kept = []string{"override/prefill/10.0.0.1:8100"} // possibly a role
	for _, tc := range []struct {
		name    string
		status  watch.Status
		off     bool
		digests metrics.Digests
		want    string
	}{
		{"up to date", live, false, metrics.Digests{Used: 2}, ""},
		{"no etcd", watch.Status{}, false, metrics.Digests{}, "etcd does not answer"},
		{"etcd replaced", kept, false, metrics.Digests{}, "etcd was replaced, and keys are kept"},
		{"digests off", live, true, metrics.Digests{}, "load digests are off"},
		{"old digest", live, false, metrics.Digests{Old: 1}, "a load digest is old, or of a newer release"},
		{"newer digest", live, false, metrics.Digests{Ignored: 1}, "a load digest is old, or of a newer release"},
	} {
		assert.Equal(t, tc.want, stale(tc.status, !tc.off, tc.digests), tc.name)
	}
}
