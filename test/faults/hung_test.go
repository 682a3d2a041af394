package faults_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/loadgen"
	"github.com/pdmesh/pdmesh/sim/testkit/longform"
	"github.com/pdmesh/pdmesh/test/harness"
)

// An engine core hangs while its API server answers /health, /v1/models and /metrics (vllm#39863). Here the
// simulated engine stops its core; its metrics do not change any more.

// post sends a body to a control route of a simulated engine.
func post(t testing.TB, n *fleet.Node, path, body string) {
	t.Helper()
	order(t, n, http.MethodPost, path, body)
}

func order(t testing.TB, n *fleet.Node, method, path, body string) {
	t.Helper()
	resp, text, err := harness.Send(context.WithoutCancel(t.Context()), method, "http://"+n.Address+path, body)
	require.NoError(t, err)
	require.Equal(t, http.StatusNoContent, resp.StatusCode,
		"%s %s of %s: %s %s", method, path, n.Address, resp.Status, text)
}

const (
	coreHung     = `{"hung":true}`
	coreRuns     = `{}`
	coreSleeping = `{"sleeping":true}`
	corePaused   = `{"paused":true}`
)

// viewIs is a condition for awaitStatus: the instance has this view, and its reason has this prefix.
func viewIs(n *fleet.Node, v instance.View, reason string) func(status) error {
	return func(s status) error {
		if in, ok := s.entry(n.Address); !ok || in.View != v || !strings.HasPrefix(in.Reason, reason) {
			return fmt.Errorf("%s is %+v", n.Address, in)
		}
		return nil
	}
}

// One of two instances of a role hangs under load: it is ejected as hung, no request is lost,
// and it returns after a trial request.
func TestFault03_HungCore(t *testing.T) {
	row(t, 3)
	r := build(t, plan{ttl: longer, proxyArgs: []string{"--scrape-interval", "1s"}})
	l := r.load()
	for _, n := range []*fleet.Node{r.decode[0], r.prefill[0]} {
		hung := time.Now()
		post(t, n, "/fake/core", coreHung)
		r.awaitStatus(viewIs(n, instance.Ejected, "hung: "))
		measured(t, 3, string(n.Spec.Role)+": core hangs to ejected by the proxy", time.Since(hung), 8*time.Second)
		l.Served(20)
		r.awaitStatus(viewIs(n, instance.Ejected, "hung: ")) // its probes pass
		if text := string(harness.Get(t, r.url()+"/metrics")); strings.Contains(text, `pd_trial_requests_total{result="ok"} 0`) {
			t.Error("no trial request to a peer was counted")
		}
		post(t, n, "/fake/core", coreRuns)
		r.awaitStatus(viewIs(n, "", ""))
		l.Served(20)
	}
	l.Finish()
}

// Engines that sleep or are paused are not picked, are shown as such, and do not count as failures.
func TestFault03_SuspendedEngine(t *testing.T) {
	row(t, 3)
	r := build(t, plan{prefill: 1, ttl: longer, engineArgs: []string{"--dev-mode"}, proxyArgs: []string{"--scrape-interval", "1s"}})
	p := r.startPool()
	l := r.load()
	n := r.decode[0]
	for state, view := range map[string]instance.View{coreSleeping: instance.Sleeping, corePaused: instance.Paused} {
		post(t, n, "/fake/core", state)
		r.awaitStatus(viewIs(n, view, "the engine "))
		l.Served(20)
		post(t, n, "/fake/core", coreRuns)
		r.awaitStatus(viewIs(n, "", ""))
		l.Served(20)
	}
	l.Finish()
	assert.False(t, p.sawView(n.Address, instance.Ejected), "a suspended engine was ejected")
}

// Long work is not a hang: a single prompt of one minute on a prefill instance, requests that wait
// minutes in an engine's queue, a core that pauses for seconds, as grammar compilation does, and
// engines that report nothing about their cores. No instance is ejected, and all requests are served.
func TestFault03_LongWorkIsNotHung(t *testing.T) {
	longform.Test(t)
	row(t, 3)
	for name, c := range map[string]struct {
		engines  []string
		requests int
		prompt   int // words
		tokens   int
		pause    bool // of a decode instance, 4 s
	}{
		"a prompt of a minute": {engines: []string{"--prefill-rate", "200"}, requests: 1, prompt: 12_000, tokens: 4},
		"150 s in a queue":     {engines: []string{"--max-num-seqs", "1", "--itl", "100ms"}, requests: 10, prompt: 10, tokens: 400},
		"a grammar":            {engines: []string{"--itl", "50ms"}, requests: 8, prompt: 10, tokens: 200, pause: true},
		"--disable-log-stats":  {engines: []string{"--disable-log-stats", "--itl", "50ms"}, requests: 4, prompt: 10, tokens: 200, pause: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := build(t, plan{
				ttl: longer, engineArgs: c.engines,
				proxyArgs: []string{"--prefill-timeout", "10m", "--decode-first-byte-timeout", "10m"},
			})
			p := r.startPool()
			var wg sync.WaitGroup
			for i := range c.requests {
				wg.Go(func() {
					if err := streamAll(t.Context(), r.url(), fmt.Sprintf("request %d%s", i, strings.Repeat(" word", c.prompt)), c.tokens); err != nil {
						t.Errorf("request %d: %v", i, err)
					}
				})
			}
			if c.pause {
				wait(t, 2*time.Second)
				post(t, r.decode[0], "/fake/core", coreHung)
				wait(t, 4*time.Second)
				post(t, r.decode[0], "/fake/core", coreRuns)
			}
			wg.Wait()
			p.end()
			for _, n := range r.nodes() {
				assert.False(t, p.sawView(n.Address, instance.Ejected), "%s was ejected", n.Address)
			}
		})
	}
}

// streamAll sends a request without a timeout and reads its stream to the end.
func streamAll(ctx context.Context, url, prompt string, tokens int) error {
	body := fmt.Sprintf(`{"model":%q,"prompt":%q,"max_tokens":%d,"ignore_eos":true,"stream":true}`, harness.Model, prompt, tokens)
	resp, text, err := harness.Send(ctx, http.MethodPost, url+"/v1/completions", body)
	if err == nil && (resp.StatusCode != http.StatusOK || !strings.HasSuffix(text, "data: [DONE]\n\n")) {
		err = fmt.Errorf("%s: %.200s", resp.Status, text)
	}
	return err
}

// The load of TestHungCheck.
const (
	hungRate   = 20 // requests per second
	hungTokens = 40
	hungCycle  = 40 * time.Second // one instance hangs for 25 s of it
	hungFor    = 25 * time.Second
)

// sent records the outcomes of the requests of TestHungCheck.
type sent struct {
	mu     sync.Mutex
	took   []time.Duration
	lost   []error // before the first content
	broken int     // after it
}

// run sends requests at a constant rate, whatever the outcome of earlier requests.
func (s *sent) run(t *testing.T, url string, d time.Duration, rate int, tokens int) {
	t.Helper()
	c := loadgen.NewClient(64, nil)
	defer c.Close()
	loadgen.OpenLoop(t.Context(), loadgen.Schedule{
		Requests: int(d.Seconds()) * rate,
		At:       func(i int) time.Duration { return time.Duration(i) * time.Second / time.Duration(rate) },
		Send: func(ctx context.Context, i int) {
			began := time.Now()
			result := harness.Complete(ctx, c, url, fmt.Sprintf("request %d of many", i), tokens)
			s.mu.Lock()
			defer s.mu.Unlock()
			s.took = append(s.took, time.Since(began))
			switch {
			case result.Err == nil:
			case result.TTFT == 0 || errors.Is(result.Err, loadgen.ErrWrong):
				s.lost = append(s.lost, result.Err)
			default:
				s.broken++
			}
		},
	})
}

// slower returns the number of requests that took longer than limit.
func (s *sent) slower(limit time.Duration) (n int) {
	for _, d := range s.took {
		if d > limit {
			n++
		}
	}
	return n
}

// TestHungCheck is make hung-check: 2 of 4 decode instances hang in turn under load, and then all four are
// slow. It prints its measurements, and fails only for lost requests and for ejections of a slow fleet: times
// depend on the machine. PD_TEST_HUNG_CHECK is the length of the load.
func TestHungCheck(t *testing.T) {
	d, err := time.ParseDuration(os.Getenv("PD_TEST_HUNG_CHECK"))
	if err != nil {
		t.Skip("make hung-check runs it (PD_TEST_HUNG_CHECK=5m)")
	}
	r := build(t, plan{prefill: 2, decode: 4, ttl: longer, engineArgs: []string{"--itl", "10ms"}})
	var healthy sent
	healthy.run(t, r.url(), 20*time.Second, hungRate, hungTokens)
	slices.Sort(healthy.took)
	usual := healthy.took[len(healthy.took)-1]
	t.Logf("healthy fleet: %d requests, median %s, slowest %s, %d lost", len(healthy.took), healthy.took[len(healthy.took)/2].Round(time.Millisecond), usual.Round(time.Millisecond), len(healthy.lost))

	var load sent
	var wg sync.WaitGroup
	wg.Go(func() { load.run(t, r.url(), d, hungRate, hungTokens) })
	var slowest time.Duration
	for i := range int(d / hungCycle) {
		n := r.decode[i%2]
		began := time.Now()
		post(t, n, "/fake/core", coreHung)
		r.awaitStatus(viewIs(n, instance.Ejected, "hung: "))
		detected := time.Since(began)
		slowest = max(slowest, detected)
		wait(t, time.Until(began.Add(hungFor)))
		post(t, n, "/fake/core", coreRuns)
		resumed := time.Now()
		r.awaitStatus(viewIs(n, "", ""))
		t.Logf("hang %d: %s ejected after %s, readmitted %s after its core ran again", i+1, n.Address, detected.Round(time.Millisecond), time.Since(resumed).Round(time.Millisecond))
		wait(t, time.Until(began.Add(hungCycle)))
	}
	wg.Wait()
	slow := load.slower(usual + 5*time.Second)
	t.Logf("2 of 4 hang in turn: %d requests, %d (%.2f %%) took more than 5 s longer than the slowest on a healthy fleet (goal: at most 2 %%), slowest detection %s (goal: 8 s), %d lost before the first content, %d broken after it",
		len(load.took), slow, 100*float64(slow)/float64(len(load.took)), slowest.Round(time.Millisecond), len(load.lost), load.broken)
	if len(load.lost) > 0 {
		t.Errorf("%d requests were lost before their first content, such as: %v", len(load.lost), load.lost[0])
	}

	p := r.startPool()
	for _, n := range r.decode {
		post(t, n, "/fake/faults", `{"kind":"slow","ttft":"12s","itl":"1500ms"}`)
	}
	var slowFleet sent
	slowFleet.run(t, r.url(), d/5, 2, 8)
	for _, n := range r.decode {
		order(t, n, http.MethodDelete, "/fake/faults", "")
		post(t, n, "/fake/core", coreHung)
	}
	wg.Go(func() { slowFleet.run(t, r.url(), 25*time.Second, 2, 8) })
	wait(t, 25*time.Second)
	for _, n := range r.decode {
		post(t, n, "/fake/core", coreRuns)
	}
	wg.Wait()
	p.end()
	for _, n := range r.decode {
		assert.False(t, p.sawView(n.Address, instance.Ejected), "%s was ejected though all four were slow", n.Address)
	}
	t.Logf("all four slow (12 s to the first token, 1.5 s between tokens; then all stopped for 25 s): %d requests, %d lost before the first content, no ejection: %t", len(slowFleet.took), len(slowFleet.lost), !t.Failed())
}
