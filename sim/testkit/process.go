package testkit

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdmain"

	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit/require"
)

// envMember makes a test binary run again as an etcd member, with the command line of etcd.
const envMember = "PDMESH_TEST_ETCD_MEMBER"

// envOutside names an etcd program. If it is set, every etcd of the tests is a process of that
// program: the same tests then show whether our code works with that version.
const envOutside = "PD_TEST_ETCD"

func outside() string { return os.Getenv(envOutside) }

// MaybeRunEtcd is called first in the TestMain of a package that uses
// StartEtcdProcess, before flags are parsed: in the child process it runs the etcd member and never
// returns, in the test process it does nothing.
func MaybeRunEtcd() {
	if os.Getenv(envMember) != "" {
		etcdmain.Main(os.Args)
		os.Exit(0)
	}
}

// EtcdProcess is an etcd member in a process of its own, which can be killed
// and paused. It ends with the test process, whatever happens to that.
type EtcdProcess struct {
	t       testing.TB
	fleet   *fleet.Fleet
	spec    fleet.MemberSpec
	process *fleet.Member // nil if it does not run
}

// ProcessOption changes how a member is started.
type ProcessOption func(*fleet.MemberSpec)

// WithQuota lets the member's data grow to that many bytes and no further.
func WithQuota(bytes int64) ProcessOption {
	return func(s *fleet.MemberSpec) { s.Args = append(s.Args, fmt.Sprint("--quota-backend-bytes=", bytes)) }
}

// WithHost makes the member serve clients at an address of this machine other than loopback, and
// advertise it.
func WithHost(host string) ProcessOption {
	return func(s *fleet.MemberSpec) {
		if _, port, err := net.SplitHostPort(s.Client); err == nil {
			s.Client = net.JoinHostPort(host, port)
		}
	}
}

// WithTokenTTL makes logins of users last that many seconds, once
// authentication is on.
func WithTokenTTL(seconds uint) ProcessOption {
	return func(s *fleet.MemberSpec) { s.Args = append(s.Args, fmt.Sprint("--auth-token-ttl=", seconds)) }
}

// StartEtcdProcess starts an etcd member on a free port. The package's
// TestMain must call MaybeRunEtcd first.
func StartEtcdProcess(t testing.TB, opts ...ProcessOption) *EtcdProcess {
	t.Helper()
	return startMembers(t, 1, nil, opts)[0]
}

// newMember makes a member that does not run yet. Its Cluster is to be set.
func newMember(t testing.TB, name, peer string, opts []ProcessOption) *EtcdProcess {
	t.Helper()
	f, err := fleet.New(fleet.Options{Dir: t.TempDir(), ReadyTimeout: startTimeout})
	require.NoError(t, err)
	self, err := os.Executable()
	require.NoError(t, err)
	program, err := exec.LookPath(cmp.Or(outside(), self))
	require.NoError(t, err)
	p := &EtcdProcess{t: t, fleet: f, spec: fleet.MemberSpec{
		Name: name, Client: FreePort(t), Peer: peer, Program: program,
		// With the least bcrypt cost, a login does not take a second under the race detector.
		Args: []string{"--auto-compaction-retention=0", "--logger=zap", "--log-level=error", "--bcrypt-cost=4"},
		Env:  []string{"ETCD_UNSUPPORTED_ARCH=" + runtime.GOARCH}, // old versions require it except on amd64
	}}
	if outside() == "" {
		p.spec.Args, p.spec.Env = append(p.spec.Args, "--unsafe-no-fsync"), append(p.spec.Env, envMember+"=1")
	}
	for _, o := range opts {
		o(&p.spec)
	}
	t.Cleanup(p.Kill)
	return p
}

// start starts the member and waits until it knows a leader.
func (p *EtcdProcess) start() (err error) {
	p.process, err = p.fleet.StartMember(context.Background(), p.spec)
	return err
}

// dir returns the directory of the data.
func (p *EtcdProcess) dir() string { return filepath.Join(p.fleet.Dir(), p.spec.Name) }

// Endpoint is the host:port clients use. It stays the same over a Restart.
func (p *EtcdProcess) Endpoint() string { return p.spec.Client }

// Client makes a client that is closed when the test ends.
func (p *EtcdProcess) Client(t testing.TB) *clientv3.Client {
	t.Helper()
	return Client(t, p.spec.Client)
}

// Kill ends the member as a crash does, and waits until it has exited.
func (p *EtcdProcess) Kill() {
	if p.process == nil {
		return
	}
	if err := p.process.Kill(); err != nil {
		p.t.Errorf("kill etcd member: %v", err)
	}
	p.process = nil
}

// Pause stops the member as a suspended machine does: it keeps its sockets and
// answers nothing. When it returns, all its threads are stopped.
func (p *EtcdProcess) Pause() {
	p.t.Helper()
	p.signal(syscall.SIGSTOP)
	Eventually(p.t, 30*time.Second, func() error { return stopped(p.process.PID()) })
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

// Resume lets a paused member go on.
func (p *EtcdProcess) Resume() { p.signal(syscall.SIGCONT) }

func (p *EtcdProcess) signal(s syscall.Signal) {
	p.t.Helper()
	if p.process == nil {
		p.t.Fatal("etcd member: not running")
	}
	require.NoError(p.t, p.process.Signal(s))
}

// Restart starts the member again on the same data and port. A running one is
// killed first.
func (p *EtcdProcess) Restart() {
	p.t.Helper()
	p.Kill()
	require.NoError(p.t, p.start())
}

// Wipe kills the member and throws its data away: after Restart it is another,
// empty store at the same address, with the same member id.
func (p *EtcdProcess) Wipe() {
	p.t.Helper()
	p.Kill()
	require.NoError(p.t, os.RemoveAll(p.dir()))
}
