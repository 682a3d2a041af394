package faults_test

import (
	"encoding/json"
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/httpapi"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/test/harness"
)

// digests returns the load digests that a proxy knows, by the ID of the proxy that wrote them, and
// the ID of its own digest.
func digests(t testing.TB, p *fleet.Proxy) (of map[string]httpapi.LoadDigest, own string) {
	t.Helper()
	var s struct {
		Digests []httpapi.LoadDigest `json:"load_digests"`
	}
	require.NoError(t, json.Unmarshal(harness.Get(t, p.URL()+"/status"), &s))
	of = map[string]httpapi.LoadDigest{}
	for _, d := range s.Digests {
		of[d.ID] = d
		if d.Own {
			own = d.ID
		}
	}
	return of, own
}

// A proxy is suspended under load. The other proxies first reduce the weight of its digest, then
// ignore it; they serve all requests and balance evenly. After it resumes they use its digest again,
// and the streams that it had open end normally.
func TestDigestOfASuspendedProxy(t *testing.T) {
	t.Parallel()
	r := build(t, plan{proxies: 3, proxyArgs: []string{"--decode-policy", "least_loaded"}, ttl: longer})
	others, suspended := r.proxies[:2], r.proxies[2]
	_, id := digests(t, suspended)
	seen := func(want func(d httpapi.LoadDigest, there bool) bool) {
		t.Helper()
		for _, p := range others {
			testkit.Eventually(t, soon, func() error {
				all, _ := digests(t, p)
				if d, there := all[id]; !want(d, there) {
					return fmt.Errorf("%s knows %+v, %t", p.Name(), d, there)
				}
				return nil
			})
		}
	}
	busy := func(d httpapi.LoadDigest, there bool) bool { return there && d.Weight == 1 && d.Instances > 0 }
	l := harness.StartLoad(t, clients, pause, others[0].URL(), others[1].URL())
	l.Served(20)
	open := r.open(suspended, 4, longTokens, r.decode...)
	seen(busy)

	require.NoError(t, suspended.Signal(syscall.SIGSTOP))
	t.Cleanup(func() { _ = suspended.Signal(syscall.SIGCONT) })
	seen(func(d httpapi.LoadDigest, there bool) bool { return !there || d.Weight < 1 })
	seen(func(d httpapi.LoadDigest, there bool) bool { return !there || d.Weight == 0 })
	for _, p := range others {
		// The digest of the other proxy may be late on a busy machine.
		testkit.EventuallyEqual(t, soon, func() float64 { return harness.Metric(t, p.URL(), "pd_load_digests", `state="used"`) }, 1, p.Name())
	}
	var before [2]int64
	for i, n := range r.decode {
		before[i] = requestsOf(t, n)
	}
	l.Served(400)
	a, b := requestsOf(t, r.decode[0])-before[0], requestsOf(t, r.decode[1])-before[1]
	spread := 2 * float64(max(a, b)) / float64(a+b)
	assert.LessOrEqual(t, spread, 1.25, "without the third proxy the decode instances got %d and %d requests", a, b)

	require.NoError(t, suspended.Signal(syscall.SIGCONT))
	open.ended()
	seen(func(d httpapi.LoadDigest, there bool) bool { return there && d.Weight == 1 })
	open = r.open(suspended, 4, longTokens, r.decode...)
	seen(busy)
	open.ended()
	l.Finish()
}
