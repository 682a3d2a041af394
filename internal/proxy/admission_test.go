package proxy

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/discovery/loaddigest"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
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
