package faults_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/longform"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

// All processes are suspended until the leases have expired: proxy, etcd, agents and engines. When
// they resume, etcd revokes all leases. No request fails, no stream is cut, and the only instance of
// each role is used throughout, whatever its agent reported before.
func TestFault33_MachineStalls(t *testing.T) {
	row(t, 33)
	for _, c := range []struct {
		name string
		slow bool // the agent of the decode instance reports it as slow before the stall
	}{{"all ready", false}, {"decode reported as slow", true}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := start(t, fleet.ProxySpec{})
			r.prefill = append(r.prefill, r.node(instance.Prefill, 1, ttl))
			r.decode = append(r.decode, r.node(instance.Decode, 1, ttl, "--probe-timeout", "500ms"))
			r.awaitAll()
			proxy, decode := r.proxies[0], r.decode[0]
			cli := members.Dial(t, r.etcd...)
			before := keys(t, cli)
			l, p := r.load(), r.startPool()
			pids := []int{decode.Engine.PID()}
			if c.slow {
				signal(t, syscall.SIGSTOP, pids...)
				r.awaitEntry(decode.Address, func(in instance.Listing, ok bool) bool {
					return ok && in.State == instance.Down && in.Cause == instance.CauseSlow
				})
				before = keys(t, cli)
			}
			pids = append(pids, proxy.PID(), etcdPID(t, proxy), decode.Agent.PID(), r.prefill[0].Agent.PID(), r.prefill[0].Engine.PID())
			signal(t, syscall.SIGSTOP, pids...)
			wait(t, 3*ttl)
			signal(t, syscall.SIGCONT, pids...)
			testkit.Eventually(t, soon, func() error {
				for k, a := range keys(t, cli) {
					if b := before[k]; a.Lease == 0 || a.Lease == b.Lease {
						return fmt.Errorf("%s: before %+v, after %+v", k, b, a)
					}
				}
				return nil
			})
			r.awaitRecovered()
			l.Served(20)
			l.FinishUncut()
			p.neverAbsent(decode)
		})
	}
}

// A client opened its connection before the proxy was suspended, and sent its request meanwhile. The
// proxy has 10 s for the header of a request; they passed while it could not read.
func TestFault33_RequestArrivesWhileSuspended(t *testing.T) {
	row(t, 33)
	longform.Test(t)
	r := start(t, fleet.ProxySpec{})
	proxy := r.proxies[0]
	clients := make([]net.Conn, 20)
	for i := range clients {
		c, err := net.Dial("tcp", strings.TrimPrefix(proxy.URL(), "http://"))
		require.NoError(t, err)
		defer c.Close()
		clients[i] = c
	}
	// Connections are accepted in order, so those above are accepted before this one is served.
	if code, _, err := request(t, "GET", proxy.URL()+"/health", ""); err != nil {
		t.Fatal(code, err)
	}
	signal(t, syscall.SIGSTOP, proxy.PID())
	wait(t, 12*time.Second)
	for _, c := range clients {
		if _, err := io.WriteString(c, "GET /version HTTP/1.1\r\nHost: pdmesh\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
	}
	signal(t, syscall.SIGCONT, proxy.PID())
	for i, c := range clients {
		require.NoError(t, c.SetReadDeadline(time.Now().Add(soon)))
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		require.NoError(t, err, "client %d", i)
		resp.Body.Close()
	}
}

// The same while the only decode instance is being drained: it answers the requests that wait for it.
func TestFault33_MachineStallsDuringDrain(t *testing.T) {
	row(t, 33)
	r := start(t, fleet.ProxySpec{})
	r.prefill = append(r.prefill, r.node(instance.Prefill, 1, ttl))
	r.decode = append(r.decode, r.node(instance.Decode, 1, ttl))
	r.awaitAll()
	proxy, decode := r.proxies[0], r.decode[0]
	// A request waits for the decode engine, which is suspended.
	signal(t, syscall.SIGSTOP, decode.Engine.PID())
	answer := make(chan error, 1)
	go func() {
		code, body, err := request(t, "POST", proxy.URL()+"/v1/completions", `{"prompt":"anybody there?","max_tokens":4}`)
		if err == nil && code != 200 {
			err = fmt.Errorf("%d %s", code, body)
		}
		answer <- err
	}()
	r.awaitEntry(decode.Address, func(in instance.Listing, ok bool) bool { return ok && in.InFlight != nil && *in.InFlight > 0 })
	require.NoError(t, decode.Agent.Signal(syscall.SIGTERM))
	r.awaitEntry(decode.Address, func(in instance.Listing, ok bool) bool { return ok && in.State == instance.Draining })
	cli := members.Dial(t, r.etcd...)
	before := keys(t, cli)
	pids := []int{proxy.PID(), etcdPID(t, proxy), decode.Agent.PID(), r.prefill[0].Agent.PID(), r.prefill[0].Engine.PID()}
	signal(t, syscall.SIGSTOP, pids...)
	wait(t, 3*ttl)
	signal(t, syscall.SIGCONT, pids...)        // the decode engine resumes last
	testkit.Eventually(t, soon, func() error { // its agent registers it again
		if a, b := keys(t, cli)[keyOf(t, decode)], before[keyOf(t, decode)]; a.Lease == 0 || a.Lease == b.Lease {
			return fmt.Errorf("before %+v, after %+v", b, a)
		}
		return nil
	})
	signal(t, syscall.SIGCONT, decode.Engine.PID())
	assert.NoError(t, <-answer)
}
