// Package etcdtest runs a real etcd for tests, in processes of its own.
//
//	Server, Cluster     of one member, or of several
//	FillUp, EnableAuth  conditions of an etcd: no space left, authentication
package etcdtest

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/tcpserver"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

// envOtherEtcd names another etcd program for all tests, which shows whether the code works
// with its version.
const envOtherEtcd = "PD_TEST_ETCD"

// startTimeout limits the start of an etcd on a machine that is busy with other tests.
const startTimeout = 60 * time.Second

// otherEtcd returns the program of envOtherEtcd, "" for the etcd of this module.
func otherEtcd() string { return os.Getenv(envOtherEtcd) }

// Program returns the path of the etcd program. The etcd of this module is the one that make
// test built, or it is built into the build cache of go.
var Program = sync.OnceValues(func() (string, error) { //nolint:gochecknoglobals // it is built once
	if other := otherEtcd(); other != "" {
		return other, nil
	}
	if dir := os.Getenv("PD_TEST_BIN"); dir != "" {
		return filepath.Join(dir, "etcd"), nil
	}
	build := exec.Command("go", "tool", "-n", "etcd")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	path, err := build.Output()
	if err != nil {
		return "", fmt.Errorf("build etcd: %w", err)
	}
	return strings.TrimSpace(string(path)), nil
})

// Server is a real etcd of one member, or a member of a Cluster, in a process of its own. It can be
// killed and paused, and it ends with the test process. It does not wait for the disk.
type Server struct {
	t       testing.TB
	cfg     memberConfig
	fleet   *fleet.Fleet
	process *fleet.Process // nil if it does not run
}

// memberConfig is the configuration of a member. Its addresses are fixed before it starts,
// because the program does not report which ports it took.
type memberConfig struct {
	dir    string   // of its data
	listen string   // host:port for clients
	scheme string   // for clients
	args   []string // more arguments
	// Of a member of a cluster; all empty for one alone.
	name    string
	peer    string // host:port for the other members
	cluster string // name=url of every member
}

// Option changes how a member is started.
type Option func(*memberConfig)

// WithQuota limits the size of the member's data in bytes.
func WithQuota(bytes int64) Option {
	return WithArgs("--quota-backend-bytes", strconv.FormatInt(bytes, 10))
}

// WithHost makes the member serve clients at an address of this machine other than loopback, and
// advertise it.
func WithHost(host string) Option {
	return func(c *memberConfig) {
		if _, port, err := net.SplitHostPort(c.listen); err == nil {
			c.listen = net.JoinHostPort(host, port)
		}
	}
}

// WithTLS makes the member use TLS with clients, with these files. With ca, clients must
// present a certificate that it has signed.
func WithTLS(cert, key, ca string) Option {
	return func(c *memberConfig) {
		c.scheme = "https"
		c.args = append(c.args, "--cert-file", cert, "--key-file", key)
		if ca != "" {
			c.args = append(c.args, "--trusted-ca-file", ca, "--client-cert-auth")
		}
	}
}

// WithArgs adds arguments to the command line.
func WithArgs(args ...string) Option {
	return func(c *memberConfig) { c.args = append(c.args, args...) }
}

// Start starts an etcd on a free port. It is killed when the test ends, after the clients
// that Client created are closed.
func Start(t testing.TB, opts ...Option) *Server {
	t.Helper()
	e := newMember(t, memberConfig{}, opts)
	e.start()
	return e
}

// newMember returns a member that is not started.
func newMember(t testing.TB, cfg memberConfig, opts []Option) *Server {
	t.Helper()
	cfg.dir, cfg.listen, cfg.scheme = t.TempDir(), testkit.FreePort(t), "http"
	for _, o := range opts {
		o(&cfg)
	}
	f, err := fleet.New(fleet.Options{Dir: t.TempDir(), ReadyTimeout: startTimeout})
	require.NoError(t, err)
	e := &Server{t: t, cfg: cfg, fleet: f}
	t.Cleanup(e.Kill)
	return e
}

func (e *Server) start() {
	e.t.Helper()
	if err := e.launch(); err != nil {
		e.t.Fatalf("etcd member: %v", err)
	}
}

// launch starts the process once its address is free, and waits until it listens and, unless
// clients need a certificate or a login, knows a leader.
func (e *Server) launch() error {
	program, err := Program()
	if err != nil {
		return err
	}
	err = tcpserver.WhenFree(context.Background(), func() error {
		l, err := net.Listen("tcp", e.cfg.listen)
		if err != nil {
			return err
		}
		return l.Close()
	})
	if err != nil {
		return err
	}
	// The ids of a member alone depend on these: they are the same for all stores.
	name, peer := cmp.Or(e.cfg.name, "test"), cmp.Or(e.cfg.peer, "127.0.0.1:0")
	cluster := cmp.Or(e.cfg.cluster, name+"=http://"+peer)
	client := e.cfg.scheme + "://" + e.cfg.listen
	args := []string{
		"--name", name, "--data-dir", e.cfg.dir, "--initial-cluster", cluster,
		"--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", "http://" + peer, "--initial-advertise-peer-urls", "http://" + peer,
		"--logger", "zap", "--log-level", "error",
		"--bcrypt-cost", "4", // the lowest: a login must not take a second
	}
	if otherEtcd() == "" {
		args = append(args, "--unsafe-no-fsync") // etcd 3.4 has no such flag
	}
	e.process, err = e.fleet.Start(context.Background(), fleet.Spec{
		Name: "etcd", Program: program, Args: append(args, e.cfg.args...), Ready: e.serves,
		Env: []string{"ETCD_UNSUPPORTED_ARCH=" + runtime.GOARCH}, // required by old versions
	})
	return err
}

func (e *Server) serves(ctx context.Context) error {
	if e.cfg.scheme == "https" { // etcd answers a handshake once it serves
		c, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}).DialContext(ctx, "tcp", e.cfg.listen)
		if err == nil {
			err = c.Close()
		}
		return err
	}
	s, err := memberStatus(ctx, e.cfg.listen)
	if err == nil && s.Leader == 0 {
		return errors.New("no leader")
	}
	return err
}

// memberStatus returns the state of a member that runs without TLS.
func memberStatus(ctx context.Context, endpoint string) (*clientv3.StatusResponse, error) {
	cli, err := quietClient(endpoint)
	if err != nil {
		return nil, err
	}
	defer cli.Close()
	s, err := cli.Status(ctx, endpoint)
	if err != nil {
		return nil, fmt.Errorf("status of %s: %w", endpoint, err)
	}
	return s, nil
}

// Endpoint returns the host:port for clients. It does not change with a Restart.
func (e *Server) Endpoint() string { return e.cfg.listen }

// Client returns a client that is closed when the test ends.
func (e *Server) Client(t testing.TB) *clientv3.Client {
	t.Helper()
	return Client(t, e.cfg.listen)
}

// Kill ends the member like a crash, and waits until it has exited.
func (e *Server) Kill() {
	if e.process == nil {
		return
	}
	if err := e.process.Kill(); err != nil {
		e.t.Errorf("etcd member: %v", err)
	}
	e.process = nil
}

// Pause stops the member like a suspended machine: it keeps its sockets and answers nothing.
// When Pause returns, all its threads are stopped.
func (e *Server) Pause() {
	e.t.Helper()
	e.signal(syscall.SIGSTOP)
	testkit.Eventually(e.t, 30*time.Second, func() error { return stopped(e.process.PID()) })
}

// stopped returns an error unless all threads of a process are stopped: the signal reaches one
// after the other.
func stopped(pid int) error {
	threads, err := procfs.AllThreads(pid)
	if err != nil {
		return err
	}
	for _, t := range threads {
		if stat, err := t.Stat(); err == nil && stat.State != "T" { // otherwise this thread has ended
			return fmt.Errorf("thread %d is in state %s", t.PID, stat.State)
		}
	}
	return nil
}

// Resume continues a paused member.
func (e *Server) Resume() { e.signal(syscall.SIGCONT) }

func (e *Server) signal(s syscall.Signal) {
	e.t.Helper()
	if e.process == nil {
		e.t.Fatal("etcd member: not running")
	}
	require.NoError(e.t, e.process.Signal(s))
}

// Restart starts the member again with the same data and port. A running one is killed first.
func (e *Server) Restart() {
	e.t.Helper()
	e.Kill()
	e.start()
}

// Wipe kills the member and deletes its data. After a Restart it is another, empty store at the
// same address, with the same member id.
func (e *Server) Wipe() {
	e.t.Helper()
	e.Kill()
	require.NoError(e.t, os.RemoveAll(e.cfg.dir))
	require.NoError(e.t, os.MkdirAll(e.cfg.dir, 0o700))
}

// Client makes a client of any etcd, closed when the test ends. It reconnects
// fast and makes no noise.
func Client(t testing.TB, endpoints ...string) *clientv3.Client {
	t.Helper()
	cli, err := quietClient(endpoints...)
	require.NoError(t, err)
	t.Cleanup(func() {
		if err := cli.Close(); err != nil {
			t.Logf("close etcd client: %v", err)
		}
	})
	return cli
}

func quietClient(endpoints ...string) (*clientv3.Client, error) {
	return clientv3.New(clientConfig(endpoints...))
}

func clientConfig(endpoints ...string) clientv3.Config {
	return clientv3.Config{
		Endpoints: endpoints,
		Logger:    zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithNoProxy(), grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: time.Second,
		})},
	}
}
