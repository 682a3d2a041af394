// Package scripts_test runs the shell scripts of this directory.
package scripts_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// script is a running register-node.sh, and its output.
type script struct {
	cmd *exec.Cmd
	out *testkit.Buffer
}

func needCurl(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("curl"); err != nil {
		if os.Getenv("REQUIRE_CURL") != "" {
			t.Fatal("REQUIRE_CURL is set, but curl is not installed")
		}
		t.Skip("curl is not installed (REQUIRE_CURL=1 makes that a failure)")
	}
}

// register starts the script with a lease of 3 s; it is killed at the end of the test.
func register(t *testing.T, args ...string) *script {
	t.Helper()
	needCurl(t)
	s := &script{cmd: exec.Command("./register-node.sh", args...), out: new(testkit.Buffer)}
	s.cmd.Env = append(s.cmd.Environ(), "TTL=3", "http_proxy=http://127.0.0.1:1") // curl uses it for loopback, too
	s.cmd.Stdout, s.cmd.Stderr = s.out, s.out
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	s.cmd.WaitDelay = 10 * time.Second
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // with its children
		_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL) // it has usually ended
		_ = s.cmd.Wait()                                      // the exit code does not matter here
		if t.Failed() {
			t.Logf("output of the script:\n%s", s.out)
		}
	})
	return s
}

// startEtcd starts an etcd with a working JSON gateway. The gateway connects to the
// configured listen address, which must not have port 0; a restart sets it to the
// assigned port.
func startEtcd(t *testing.T) *etcdtest.Server {
	t.Helper()
	etcd := etcdtest.Start(t)
	etcd.Restart()
	return etcd
}

// engine serves the /health of an engine, which fails while healthy is false.
func engine(t *testing.T) (address string, healthy *atomic.Bool) {
	t.Helper()
	healthy = new(atomic.Bool)
	healthy.Store(true)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !healthy.Load() || r.URL.Path != "/health" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(srv.Close)
	return strings.TrimPrefix(srv.URL, "http://"), healthy
}

var errAbsent = errors.New("the key does not exist")

// lookup returns the lease of a key, or an error if its value is not the given one.
func lookup(ctx context.Context, cli *clientv3.Client, key, value string) (clientv3.LeaseID, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	res, err := cli.Get(ctx, key)
	if err != nil {
		return 0, err
	}
	if len(res.Kvs) == 0 {
		return 0, errAbsent
	}
	if string(res.Kvs[0].Value) != value {
		return 0, fmt.Errorf("value %q", res.Kvs[0].Value)
	}
	return clientv3.LeaseID(res.Kvs[0].Lease), nil
}

func TestRegisterNode(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t)
	cli := etcd.Client(t)
	address, healthy := engine(t)
	key := "/pd/prefill/" + address
	s := register(t, "prefill", address, "http://"+etcd.Endpoint())

	present := func() (lease clientv3.LeaseID) {
		t.Helper()
		testkit.Eventually(t, time.Minute, func() (err error) {
			if lease, err = lookup(t.Context(), cli, key, address); err == nil && lease == 0 {
				err = errors.New("the key has no lease")
			}
			return err
		})
		return lease
	}
	absent := func(why string) {
		t.Helper()
		testkit.Eventually(t, time.Minute, func() error {
			if _, err := lookup(t.Context(), cli, key, address); !errors.Is(err, errAbsent) {
				return fmt.Errorf("%s, but the key exists (%w)", why, err)
			}
			return nil
		})
	}

	first := present()
	// The lease is renewed, and the key is put only once.
	testkit.Eventually(t, time.Minute, func() error {
		res, err := cli.Get(t.Context(), key)
		if err != nil {
			return err
		}
		if res.Kvs[0].Version != 1 || clientv3.LeaseID(res.Kvs[0].Lease) != first {
			t.Fatalf("the key was put again: version %d", res.Kvs[0].Version)
		}
		ttl, err := cli.TimeToLive(t.Context(), first)
		if err != nil {
			return err
		}
		if ttl.TTL < ttl.GrantedTTL-1 {
			return fmt.Errorf("%d of %d s are left", ttl.TTL, ttl.GrantedTTL)
		}
		return nil
	})
	if _, err := cli.Revoke(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	if second := present(); second == first {
		t.Error("the key came back under the same lease")
	}
	healthy.Store(false)
	absent("the engine is unhealthy")
	healthy.Store(true)
	present()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	absent("the script received SIGTERM")
}

func TestRegisterNode_KeepsForeignKey(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t)
	cli := etcd.Client(t)
	address, _ := engine(t)
	if _, err := cli.Put(t.Context(), "/pd/decode/"+address, "of another owner"); err != nil {
		t.Fatal(err)
	}
	s := register(t, "decode", address, "http://"+etcd.Endpoint())
	testkit.Eventually(t, time.Minute, func() error {
		if !strings.Contains(s.out.String(), "registered already") {
			return errors.New("the script does not report that the key exists")
		}
		return nil
	})
	if _, err := lookup(t.Context(), cli, "/pd/decode/"+address, "of another owner"); err != nil {
		t.Errorf("the key of the other owner: %v", err)
	}
	leases, err := cli.Leases(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(leases.Leases) > 1 { // at most that of a running attempt
		t.Errorf("%d leases are left behind", len(leases.Leases))
	}
}

func TestRegisterNodeUsage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{nil, {"prefill"}, {"both", "127.0.0.1:1"}} {
		out, err := exec.Command("./register-node.sh", args...).CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 2 || !strings.Contains(string(out), "usage:") {
			t.Errorf("%q: %v: %s", args, err, out)
		}
	}
}
