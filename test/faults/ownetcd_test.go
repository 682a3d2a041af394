package faults_test

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
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

// hosted starts a fleet of two proxies, the first of which embeds etcd.
func hosted(t *testing.T, ttl time.Duration) *rig {
	t.Helper()
	r := start(t, fleet.ProxySpec{})
	r.proxies = append(r.proxies, r.proxy("proxy-2", "--audit-interval", "2s"))
	for i := range 2 {
		r.prefill = append(r.prefill, r.node(instance.Prefill, i+1, ttl))
		r.decode = append(r.decode, r.node(instance.Decode, i+1, ttl))
	}
	r.awaitAll()
	return r
}

// start starts the proxy that embeds etcd.
func start(t *testing.T, s fleet.ProxySpec) *rig {
	t.Helper()
	r := &rig{t: t, f: newFleet(t)}
	s.Name, s.AdminKey = "proxy-1", adminKey
	s.Args = append(proxyArgs("--audit-interval", "2s"), s.Args...)
	host, err := r.f.StartProxy(t.Context(), s)
	require.NoError(t, err)
	r.proxies, r.etcd, r.agents = []*fleet.Proxy{host}, host.Etcd, host.Etcd
	return r
}

// etcdPID returns the process ID of a proxy's embedded etcd, 0 if it is not running.
func etcdPID(t testing.TB, p *fleet.Proxy) int {
	t.Helper()
	names, err := filepath.Glob("/proc/[0-9]*/stat")
	require.NoError(t, err)
	for _, name := range names {
		stat, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended
		}
		after := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(after) > 1 && after[0] != "Z" && after[1] == strconv.Itoa(p.PID()) {
			pid, err := strconv.Atoi(strings.Split(name, "/")[2])
			require.NoError(t, err)
			return pid
		}
	}
	return 0
}

func signal(t testing.TB, sig syscall.Signal, pids ...int) {
	t.Helper()
	for _, pid := range pids {
		if pid <= 0 {
			t.Fatalf("%s to process %d", sig, pid) // kill(2) would signal a process group
		}
		require.NoError(t, syscall.Kill(pid, sig), "%s to %d", sig, pid)
	}
	if sig == syscall.SIGSTOP {
		fleet.AwaitStop(pids...)
	}
}

// awaitEtcdExits waits until the proxy's status has counted n exits of the embedded etcd, and its reason
// contains says.
func (r *rig) awaitEtcdExits(n int64, says string) {
	r.t.Helper()
	testkit.Eventually(r.t, soon, func() error {
		s, err := fetchStatus(r.t.Context(), r.proxies[0])
		if err == nil && (s.Etcd.Ends < n || says == "" && s.Etcd.Ended != "" || !strings.Contains(s.Etcd.Ended, says)) {
			err = fmt.Errorf("%+v", s.Etcd)
		}
		return err
	})
}

// The embedded etcd exits: first killed, then because it cannot use its files any more. The proxy and
// its streams continue, the proxy reports the exit, and etcd restarts as soon as it can.
func TestEmbeddedEtcd_Exits(t *testing.T) {
	t.Parallel()
	r := hosted(t, ttl)
	host := r.proxies[0]
	l, p := r.load(), r.startPool()
	signal(t, syscall.SIGKILL, etcdPID(t, host))
	r.awaitEtcdExits(1, "")
	r.follows(1)

	db := filepath.Join(r.f.Dir(), "etcd-"+host.Etcd[0][strings.LastIndexByte(host.Etcd[0], ':')+1:], "member", "snap", "db")
	signal(t, syscall.SIGSTOP, etcdPID(t, host))
	good, err := os.ReadFile(db)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(db+".new", bytes.Repeat([]byte("damage"), 10000), 0o600))
	require.NoError(t, os.Rename(db+".new", db))
	signal(t, syscall.SIGKILL, etcdPID(t, host))
	r.awaitEtcdExits(2, filepath.Dir(filepath.Dir(filepath.Dir(db))))
	if _, body := page(t, host.URL()+"/metrics"); !strings.Contains(body, "\npd_etcd_embedded_up 0\n") || !strings.Contains(body, "\npd_etcd_embedded_ends_total 2\n") {
		t.Error("the metrics do not show that etcd has exited")
	}
	if c, _ := page(t, host.URL()+"/health"); c != 200 {
		t.Errorf("/health: %d", c)
	}
	l.Served(50)
	require.NoError(t, os.WriteFile(db, good, 0o600))
	r.awaitEtcdExits(2, "")
	r.follows(2)
	r.awaitAll()
	l.Served(20)
	p.finish(l, 2)
	log, err := os.ReadFile(host.LogFile())
	require.NoError(t, err)
	require.True(t, testkit.Contains(t, string(log), "embedded etcd has ended", "signal: killed", "embedded etcd serves again", "files of the embedded etcd are damaged"))
	assert.NotContains(t, string(log), "goroutine ", "a stack trace in the log")
}

// Three hundred clients connect and send nothing, where a process may open 256 files. The proxy
// serves the clients that were connected before and refuses new ones with 503, health routes
// answer, and the embedded etcd works. Both survive etcd's purge of old files, which needs a
// descriptor and runs every 30 s.
func TestSilentClientsTakeAllDescriptors(t *testing.T) {
	t.Parallel()
	longform.Test(t)
	r := &rig{t: t, f: newFleet(t)}
	ports, err := fleet.FreePorts(2)
	require.NoError(t, err)
	address, etcd := "127.0.0.1:"+strconv.Itoa(ports[0]), "127.0.0.1:"+strconv.Itoa(ports[1])
	args := append([]string{"-c", `ulimit -n 256 && exec "$0" "$@"`, filepath.Join(bin, "proxy"),
		"--host", "127.0.0.1", "--port", strconv.Itoa(ports[0]), "--etcd-listen", etcd, "--etcd-data-dir", t.TempDir()}, proxyArgs()...)
	proxy, err := r.f.Start(t.Context(), fleet.Spec{Name: "proxy-256", Program: "/bin/sh", Args: args})
	require.NoError(t, err)
	r.etcd, r.agents = []string{etcd}, []string{etcd}
	testkit.Eventually(t, soon, func() error {
		c, body, err := request(t, "GET", "http://"+address+"/readyz", "")
		if err == nil && !strings.Contains(body, `"started":true`) {
			err = fmt.Errorf("%d %s", c, body)
		}
		return err
	})
	r.node(instance.Prefill, 1, longer)
	r.node(instance.Decode, 1, longer)
	connected := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1}, Timeout: 20 * time.Second}
	defer connected.CloseIdleConnections()
	served := func() error {
		resp, err := testkit.Ask(t.Context(), connected, http.MethodPost, "http://"+address+"/v1/completions", `{"prompt":"hello","max_tokens":4}`)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err == nil && resp.StatusCode != http.StatusOK {
			err = fmt.Errorf("%d %s; its log:\n%s", resp.StatusCode, body, proxy.LogTail(5))
		}
		return err
	}
	testkit.Eventually(t, soon, served)
	stop := make(chan struct{})
	defer close(stop)
	for range 300 { // each reconnects after it is refused
		go func() {
			for {
				c, err := (&net.Dialer{Timeout: time.Second}).Dial("tcp", address)
				if err == nil {
					go func() { <-stop; c.Close() }()
					_, _ = c.Read(make([]byte, 1))
					c.Close()
				}
				select {
				case <-stop:
					return
				case <-time.NewTimer(100 * time.Millisecond).C:
				}
			}
		}()
	}
	testkit.Eventually(t, soon, func() error {
		c, body, err := request(t, http.MethodPost, "http://"+address+"/v1/completions", `{"prompt":"hello","max_tokens":4}`)
		if err == nil && (c != http.StatusServiceUnavailable || !strings.Contains(body, "--max-connections")) {
			err = fmt.Errorf("not at the limit: %d %s", c, body)
		}
		return err
	})
	began := time.Now()
	for time.Since(began) < 40*time.Second {
		require.NoError(t, served())
		c, body := page(t, "http://"+address+"/health")
		require.Equal(t, http.StatusOK, c, "/health: %s", body)
		members.Put(t, members.Dial(t, etcd), members.Layout(t).Instance(decodeAt(9)), `{"v":1,"state":"draining"}`)
		wait(t, 200*time.Millisecond)
	}
	assert.NoError(t, proxy.Err())
	if log, err := os.ReadFile(proxy.LogFile()); err != nil || strings.Contains(string(log), "has ended") {
		t.Errorf("%v: its etcd has exited:\n%s", err, proxy.LogTail(10))
	}
}

// The proxy with the embedded etcd is suspended until the leases would have expired. etcd is a separate
// process: no lease is lost.
func TestHostStarved(t *testing.T) {
	t.Parallel()
	longform.Test(t)
	r := hosted(t, longer)
	cli := members.Dial(t, r.etcd...)
	before := keys(t, cli)
	p := r.startPool()
	signal(t, syscall.SIGSTOP, r.proxies[0].PID())
	wait(t, longer+ttl)
	signal(t, syscall.SIGCONT, r.proxies[0].PID())
	r.awaitAll()
	r.follows(1)
	p.neverBelow(2)
	after := keys(t, cli)
	assert.True(t, maps.Equal(before, after), "leases before %v, after %v", before, after)
}

// All processes but the engines are suspended: the proxy, its etcd and the agents, until the leases
// have expired. etcd revokes the leases when it resumes. No instance is dropped, and all register again.
func TestHostEtcdAndAgentsStarved(t *testing.T) {
	t.Parallel()
	longform.Test(t)
	for _, c := range []struct {
		name         string
		etcd, agents bool
	}{{"proxy and etcd", true, false}, {"agents", false, true}, {"all", true, true}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := hosted(t, ttl)
			var pids []int
			if c.etcd {
				pids = append(pids, r.proxies[0].PID(), etcdPID(t, r.proxies[0]))
			}
			if c.agents {
				for _, n := range r.nodes() {
					pids = append(pids, n.Agent.PID())
				}
			}
			cli := members.Dial(t, r.etcd...)
			before := keys(t, cli)
			p := r.startPool()
			signal(t, syscall.SIGSTOP, pids...)
			wait(t, 3*ttl)
			signal(t, syscall.SIGCONT, pids...)
			testkit.Eventually(t, soon, func() error {
				after := keys(t, cli)
				for k, b := range before {
					if a := after[k]; a.Lease == 0 || c.agents && a.Lease == b.Lease {
						return fmt.Errorf("%s: before %+v, after %+v", k, b, a)
					}
				}
				return nil
			})
			r.awaitRecovered()
			p.neverBelow(2)
			l := r.load()
			l.Served(20)
			l.Finish()
		})
	}
}
