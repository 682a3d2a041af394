package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/test/harness"
)

// postQueued sends a request of a key, and returns the answer without its body.
func postQueued(ctx context.Context, url, key, prompt string, header ...string) (*http.Response, string, error) {
	body := fmt.Sprintf(`{"model":%q,"prompt":%q,"max_tokens":4,"stream":true}`, model, prompt+strings.Repeat(" word", 200))
	return harness.Send(ctx, http.MethodPost, url+"/v1/completions", body, append(header, "Authorization", "Bearer "+key)...)
}

// queueOf returns the queue of the model in /status of a proxy.
func queueOf(t *testing.T, p *fleet.Proxy) instance.ListedQueue {
	t.Helper()
	var status struct{ Queues []instance.ListedQueue }
	require.NoError(t, json.Unmarshal(get(t, p.URL()+"/status"), &status))
	for _, q := range status.Queues {
		if q.Model == model {
			return q
		}
	}
	return instance.ListedQueue{}
}

// Two proxies work as one queue: a key with requests in both gets no more than a key in one of them. A proxy
// of an older version counts with the load in its digest, and requests that wait when a proxy stops get 503.
func TestQueueOfTwoProxies(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	keys := filepath.Join(t.TempDir(), "keys")
	require.NoError(t, os.WriteFile(keys, []byte("sk-a team-a\nsk-b team-b class=interactive\n"), 0o600))
	running, prefill := newFleetOn(t, etcd.Endpoint(), keys)
	one, two := running[0], running[1]
	ctx, stop := context.WithCancel(t.Context())
	var served [2]atomic.Int64
	var clients sync.WaitGroup
	flood := func(n, key int, p *fleet.Proxy) {
		for i := range n {
			clients.Go(func() {
				for j := 0; ctx.Err() == nil; j++ {
					resp, text, err := postQueued(ctx, p.URL(), []string{"sk-a", "sk-b"}[key], fmt.Sprint(p.Name(), key, i, j), "X-Priority", "default")
					switch {
					case ctx.Err() != nil:
					case err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(text, "[DONE]"):
						t.Errorf("%v %s", err, text)
						return
					default:
						served[key].Add(1)
					}
				}
			})
		}
	}
	t.Cleanup(func() { stop(); clients.Wait() })
	flood(32, 0, one)
	flood(32, 0, two)
	flood(32, 1, two)
	// The shares are not fair before the rates are learned and each proxy knows the other.
	testkit.Eventually(t, soon, func() error {
		a, b := queueOf(t, one), queueOf(t, two)
		if a.Share > 0.4 || b.Share < 0.6 || a.Keys["team-a"] < 5 || b.Keys["team-b"] < 5 {
			return fmt.Errorf("%+v %+v", a, b)
		}
		return nil
	})
	const enough = 300 // about 15 digests
	from := [2]int64{served[0].Load(), served[1].Load()}
	testkit.Eventually(t, 2*soon, func() error {
		if a, b := served[0].Load()-from[0], served[1].Load()-from[1]; a+b < enough {
			return fmt.Errorf("%d and %d served", a, b)
		}
		return nil
	})
	a, b := float64(served[0].Load()-from[0]), float64(served[1].Load()-from[1])
	t.Logf("team-a, in two proxies: %v; team-b, in one: %v", a, b)
	// Without the digests, team-b would get half of one of the two proxies.
	assert.True(t, b/(a+b) >= 0.38 && b/(a+b) <= 0.8, "team-b got %.2f of the capacity", b/(a+b))
	stop()
	clients.Wait()

	// A digest without a queue is one of an older version.
	cli := etcd.Client(t)
	status := make(chan int, 2)
	send := func(p *fleet.Proxy) {
		go func() {
			resp, text, err := postQueued(t.Context(), p.URL(), "sk-a", "late")
			if err != nil {
				t.Errorf("%v", err)
				status <- 0
				return
			}
			if resp.StatusCode != http.StatusOK && (resp.Header.Get("Retry-After") == "" || !strings.Contains(text, "stopping")) {
				t.Errorf("%v %s", resp.Header, text)
			}
			status <- resp.StatusCode
		}()
	}
	refresh := func() { // an old digest counts less
		_, err := cli.Put(t.Context(), "/pd/load/older", `{"v":1,"load":{"prefill/`+prefill+`":{"in_flight":9,"waiting_tokens":1000000}}}`)
		assert.NoError(t, err)
	}
	for _, p := range running {
		testkit.Eventually(t, soon, func() error {
			refresh()
			if n := metric(t, p.URL(), "pd_queue_saturation", `role="prefill"`); n < 100 {
				return fmt.Errorf("saturation %v", n)
			}
			return nil
		})
	}
	send(one)
	send(two)
	for _, p := range running {
		testkit.Eventually(t, soon, func() error {
			refresh()
			if q := queueOf(t, p); q.Waiting["default"] != 1 {
				return fmt.Errorf("%+v", q)
			}
			return nil
		})
	}
	require.NoError(t, one.Signal(syscall.SIGTERM))
	assert.Equal(t, http.StatusServiceUnavailable, <-status, "while the proxy stops")
	if _, err := cli.Delete(t.Context(), "/pd/load/older", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	assert.Equal(t, http.StatusOK, <-status, "after the older proxy has ended")
}

// newFleetOn starts two proxies with a queue, and a pair whose prefill is slow.
func newFleetOn(t *testing.T, etcd, keys string) (proxies []*fleet.Proxy, prefill string) {
	t.Helper()
	f := newFleet(t)
	for _, name := range []string{"one", "two"} {
		p := startProxy(t, f, name, etcd, "--connector", "nixl", "--queue", "on", "--api-keys-file", keys, "--scrape-interval", "500ms")
		proxies = append(proxies, p)
	}
	for role, args := range map[instance.Role][]string{instance.Prefill: {"--prefill-rate", "4000"}, instance.Decode: nil} {
		n := startNode(t, f, fleet.NodeSpec{
			Name: string(role), Role: role, Connector: "nixl", Model: model, Etcd: []string{etcd}, EngineArgs: args,
		})
		if role == instance.Prefill {
			prefill = n.Address
		}
	}
	for _, p := range proxies {
		require.NoError(t, p.WaitFor(t.Context(), 1, 1))
	}
	return proxies, prefill
}
