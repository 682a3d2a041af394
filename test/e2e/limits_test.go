package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/test/harness"
)

// Three proxies enforce one limit together, and when one is killed, the others take over its share. pdctl
// shows the sum of their counts, and the admin route removes the limit.
func TestLimitOfTheFleet(t *testing.T) {
	t.Parallel()
	const limit = 1200 // per minute
	f, etcd, list := proxies(t, 3)
	node(t, f, "p", instance.Prefill, 0, etcd)
	node(t, f, "d", instance.Decode, 0, etcd)
	agree(t, etcd, list, 2)
	do := func(method, body string) string {
		resp, text, err := harness.Send(t.Context(), method, list[0].URL()+"/limits/default", body, "X-Api-Key", adminKey)
		require.NoError(t, err)
		return fmt.Sprint(resp.StatusCode, " ", strings.TrimSpace(text))
	}
	for _, tc := range []struct{ method, body, want string }{
		{http.MethodGet, "", "404 "}, {http.MethodDelete, "", "404 "}, {http.MethodPut, `{"rpm":-1}`, "400 "}, {http.MethodPut, `{}`, "400 "}, {http.MethodPut, `{"rpm":1200,"tmp":1}`, "400 "}, {http.MethodPut, `{"rpm":1200}}`, "400 "}, {http.MethodPut, `{"v":2,"rpm":1200}`, "400 "},
		{http.MethodPut, `{"v":1,"rpm":1200,"reason":"test"}`, `200 {"v":1,"rpm":1200}`}, {http.MethodGet, "", `200 {"v":1,"rpm":1200}`},
	} {
		is := do(tc.method, tc.body)
		require.True(t, strings.HasPrefix(is, tc.want), "%s %s: %s, want %s", tc.method, tc.body, is, tc.want)
	}
	for _, p := range list {
		testkit.Eventually(t, soon, func() error {
			resp, text := posted(t, p.URL()+"/v1/completions", "", oneToken)
			if resp.Header.Get("X-Ratelimit-Limit-Requests") != "1200" {
				return fmt.Errorf("no limit yet: %s %s", resp.Status, text)
			}
			return nil
		})
	}

	start := time.Now()
	var admitted atomic.Int64
	stop, clients := make(chan struct{}), sync.WaitGroup{}
	defer clients.Wait()
	defer close(stop)
	for _, p := range list {
		clients.Go(func() { sendAtRate(t, p, limit, &admitted, stop) })
	}
	// The live proxies use up the limit: the rate of 100 admitted requests is close to it.
	reach := func() {
		t.Helper()
		before, since := admitted.Load(), time.Now()
		testkit.Eventually(t, 2*time.Minute, func() error {
			n := admitted.Load() - before
			rate := float64(n) / time.Since(since).Minutes()
			switch {
			case n < 100:
				return fmt.Errorf("%d requests, %.0f per minute", n, rate)
			case rate < 0.9*limit:
				before, since = before+n, time.Now()
				return fmt.Errorf("%.0f requests per minute", rate)
			}
			return nil
		})
	}
	reach()
	require.NoError(t, list[2].Kill())
	reach()
	if n, most := admitted.Load(), 1.05*limit*time.Since(start).Minutes()+0.05*limit; float64(n) > most {
		t.Errorf("%d requests were admitted, at most %.0f may be", n, most)
	}

	cmd := exec.CommandContext(t.Context(), filepath.Join(binDir, "pdctl"), "usage", "--etcd-endpoints", etcd, "-o", "json", "--proxy", list[0].URL(), "--proxy", list[1].URL())
	cmd.Env = append(os.Environ(), "ADMIN_API_KEY="+adminKey)
	out, err := cmd.Output()
	var usage struct{ Keys []instance.KeyUsage }
	if err == nil {
		err = json.Unmarshal(out, &usage)
	}
	if err != nil || len(usage.Keys) != 1 || usage.Keys[0].Key != instance.DefaultKey || usage.Keys[0].Hour.Output < 100 || usage.Keys[0].Hour.Refused < 100 || usage.Keys[0].Limits.Requests != limit {
		t.Errorf("%v: %s", err, out)
	}
	assert.Equal(t, `200 {"removed":"default"}`, do(http.MethodDelete, ""))
	if out := runProgram(t, "pdctl", "limit", "list", "--etcd-endpoints", etcd); strings.Contains(out, "default") {
		t.Error(out)
	}
}

// sendAtRate sends requests at a rate per minute until stop is closed or the proxy has ended. It waits for
// answers only while 16 are missing.
func sendAtRate(t *testing.T, p *fleet.Proxy, rate int, admitted *atomic.Int64, stop chan struct{}) {
	tick := time.NewTicker(time.Minute / time.Duration(rate))
	defer tick.Stop()
	var open sync.WaitGroup
	defer open.Wait()
	slots := make(chan struct{}, 16)
	for {
		select {
		case <-stop:
			return
		case <-p.Done():
			return
		case <-tick.C:
		}
		slots <- struct{}{}
		open.Go(func() {
			defer func() { <-slots }()
			resp, _, err := harness.Send(t.Context(), http.MethodPost, p.URL()+"/v1/completions", oneToken)
			switch {
			case err != nil: // the proxy was killed
			case resp.StatusCode == http.StatusOK:
				admitted.Add(1)
			case resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") == "":
				t.Errorf("%d %v", resp.StatusCode, resp.Header)
			}
		})
	}
}
