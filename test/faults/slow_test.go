package faults_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit/longform"
	"github.com/pdmesh/pdmesh/test/harness"
)

// Slow engines are not dead. These tests stop an engine with SIGSTOP, which behaves like an engine on
// an overloaded machine: its sockets accept connections and data, and nothing answers.

// hold suspends processes for the duration d.
func hold(t *testing.T, d time.Duration, processes ...*fleet.Process) {
	t.Helper()
	for _, p := range processes {
		require.NoError(t, p.Signal(syscall.SIGSTOP))
	}
	timer := time.NewTimer(d) // the length of the fault
	defer timer.Stop()
	<-timer.C
	for _, p := range processes {
		require.NoError(t, p.Signal(syscall.SIGCONT))
	}
}

// The only decode instance is suspended repeatedly: every request is served, none is refused, no
// stream is cut.
func TestFault03_OnlyDecodeIsSlow(t *testing.T) {
	longform.Test(t)
	row(t, 3)
	r := build(t, plan{prefill: 1, decode: 1, ttl: longer})
	stops := []struct {
		stopped, of time.Duration
		rounds      int
	}{{2 * time.Second, 5 * time.Second, 2}, {6 * time.Second, 10 * time.Second, 1}}
	if long() {
		stops = append(stops, struct {
			stopped, of time.Duration
			rounds      int
		}{20 * time.Second, 40 * time.Second, 2})
	}
	for _, s := range stops {
		l := r.load()
		for range s.rounds {
			hold(t, s.stopped, r.decode[0].Engine)
			l.Served(20)
			timer := time.NewTimer(s.of - s.stopped)
			<-timer.C
		}
		measured(t, 3, fmt.Sprintf("the only decode instance, stopped %s of %s: slowest first token beyond the stop", s.stopped, s.of),
			max(0, l.Slowest()-s.stopped), time.Second)
		l.FinishUncut()
	}
}

// Both decode instances are suspended: neither is ejected, and both are used afterwards.
func TestFault03_WholeRoleIsSlow(t *testing.T) {
	longform.Test(t)
	row(t, 3)
	r := build(t, plan{prefill: 1, ttl: longer})
	p := r.startPool()
	l := r.load()
	hold(t, 8*time.Second, r.decode[0].Engine, r.decode[1].Engine)
	l.Served(20)
	p.finish(l, 1)
	for _, n := range r.decode {
		assert.False(t, p.sawView(n.Address, instance.Ejected), "%s was ejected, although no instance answered", n.Address)
	}
	assert.EqualValues(t, 0, l.Broken(), "streams were cut")
}

// The only decode instance accepts connections and never answers again: requests end at their own
// timeout with 504.
func TestFault03_OnlyDecodeHangs(t *testing.T) {
	longform.Test(t)
	row(t, 3)
	r := build(t, plan{prefill: 1, decode: 1, ttl: longer,
		proxyArgs: []string{"--decode-first-byte-timeout", "5s"}})
	require.NoError(t, r.decode[0].Engine.Signal(syscall.SIGSTOP))
	defer func() { _ = r.decode[0].Engine.Signal(syscall.SIGCONT) }()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	var wg sync.WaitGroup
	for _, stream := range []bool{true, false} {
		wg.Go(func() {
			body := fmt.Sprintf(`{"model":"e2e/simulated","prompt":"hello","max_tokens":4,"stream":%t}`, stream)
			resp, text, err := harness.Send(ctx, http.MethodPost, r.url()+"/v1/completions", body)
			if err != nil {
				t.Errorf("stream=%t: %v", stream, err)
				return
			}
			assert.True(t, resp.StatusCode == http.StatusGatewayTimeout && strings.Contains(text, "did not answer in time"),
				"stream=%t: %s: %s", stream, resp.Status, text)
		})
	}
	wg.Wait()
}

// One of two decode instances hangs, and only the proxy notices, since its agent's timeout is longer:
// it is soon avoided, and the other instance serves its requests.
func TestFault03_OneOfTwoHangs(t *testing.T) {
	row(t, 3)
	r := build(t, plan{ttl: longer})
	l := r.load()
	hung := time.Now()
	require.NoError(t, r.decode[0].Engine.Signal(syscall.SIGSTOP))
	r.awaitEntry(r.decode[0].Address, func(in instance.Listing, ok bool) bool { return ok && in.View == instance.Ejected })
	measured(t, 3, "decode: hang to ejected by the proxy, beside one that answers", time.Since(hung), 3*time.Second)
	l.Served(40) // clients whose stream had begun on it wait
	require.NoError(t, r.decode[0].Engine.Signal(syscall.SIGCONT))
	r.awaitAll()
	r.awaitEntry(r.decode[0].Address, func(in instance.Listing, ok bool) bool { return ok && in.View == "" })
	l.Turn()
	measured(t, 3, "decode: slowest first token", l.Slowest(), 4*time.Second)
	l.Finish()
}

// The agent of the only decode instance reports it as slow. The instance is used nevertheless.
func TestFault03_OnlyDecodeReportedSlow(t *testing.T) {
	longform.Test(t)
	row(t, 3)
	r := build(t, plan{prefill: 1, decode: 1, ttl: longer, agentArgs: []string{"--probe-timeout", "500ms"}})
	l := r.load()
	var down atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		r.awaitEntry(r.decode[0].Address, func(in instance.Listing, ok bool) bool { return ok && in.State == instance.Down })
		down.Store(true)
	})
	require.NoError(t, r.decode[0].Engine.Signal(syscall.SIGSTOP))
	wg.Wait()
	require.NoError(t, r.decode[0].Engine.Signal(syscall.SIGCONT))
	l.Served(20)
	l.Finish()
	assert.True(t, down.Load(), "its agent has not reported it as down: the test shows nothing")
	assert.EqualValues(t, 0, l.Broken(), "streams were cut")
}
