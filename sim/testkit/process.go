package testkit

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit/require"
)

// envMember makes a test binary run again as an etcd member; it holds the
// member's configuration as JSON.
const envMember = "PDMESH_TEST_ETCD_MEMBER"

// MaybeRunEtcd is called first in the TestMain of a package that uses
// StartEtcdProcess: in the child process it runs the etcd member and never
// returns, in the test process it does nothing.
func MaybeRunEtcd() {
	text := os.Getenv(envMember)
	if text == "" {
		return
	}
	os.Exit(member(text))
}

func member(text string) int {
	var cfg memberConfig
	err := json.Unmarshal([]byte(text), &cfg)
	if err != nil {
		fmt.Fprintln(os.Stderr, "etcd member:", err)
		return 1
	}
	server, err := runEtcd(cfg)
	if err != nil {
		fmt.Fprintln(os.Stderr, "etcd member:", err)
		return 1
	}
	fmt.Println(readyLine + server.Clients[0].Addr().String())
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, os.Interrupt)
	<-stop
	server.Close()
	return 0
}

const readyLine = "serving on "

// EtcdProcess is an etcd member in a process of its own, which can be killed
// and paused. It ends with the test process, whatever happens to that.
type EtcdProcess struct {
	t     testing.TB
	cfg   memberConfig
	cmd   *exec.Cmd
	free  func()        // releases the thread that the member depends on
	ended chan struct{} // closed when the process has ended
}

// ProcessOption changes how a member is started.
type ProcessOption func(*memberConfig)

// WithQuota lets the member's data grow to that many bytes and no further.
func WithQuota(bytes int64) ProcessOption {
	return func(c *memberConfig) { c.QuotaBytes = bytes }
}

// WithHost makes the member serve clients at an address of this machine other than loopback, and
// advertise it.
func WithHost(host string) ProcessOption {
	return func(c *memberConfig) {
		if _, port, err := net.SplitHostPort(c.Listen); err == nil {
			c.Listen = net.JoinHostPort(host, port)
		}
	}
}

// WithTokenTTL makes logins of users last that many seconds, once
// authentication is on.
func WithTokenTTL(seconds uint) ProcessOption {
	return func(c *memberConfig) { c.TokenTTL = seconds }
}

// StartEtcdProcess starts an etcd member on a free port. The package's
// TestMain must call MaybeRunEtcd first.
func StartEtcdProcess(t testing.TB, opts ...ProcessOption) *EtcdProcess {
	t.Helper()
	p := newMember(t, memberConfig{}, opts)
	p.start()
	return p
}

// newMember makes a member that does not run yet.
func newMember(t testing.TB, cfg memberConfig, opts []ProcessOption) *EtcdProcess {
	t.Helper()
	cfg.Dir, cfg.Listen = t.TempDir(), FreePort(t)
	for _, o := range opts {
		o(&cfg)
	}
	p := &EtcdProcess{t: t, cfg: cfg}
	t.Cleanup(p.Kill)
	return p
}

func (p *EtcdProcess) start() {
	p.t.Helper()
	ready, err := p.launch()
	if err == nil {
		err = ready()
	}
	if err != nil {
		p.t.Fatalf("etcd member: %v", err)
	}
}

// launch starts the process; ready waits until it serves. The two are apart
// because members of a new cluster wait for each other.
func (p *EtcdProcess) launch() (ready func() error, err error) {
	var cmd *exec.Cmd
	var out io.Reader // of the test binary
	if outside() != "" {
		cmd = outsideCommand(p.t, &p.cfg)
	} else {
		self, err := os.Executable()
		if err != nil {
			return nil, err
		}
		text, err := json.Marshal(p.cfg)
		if err != nil {
			return nil, err
		}
		cmd = exec.Command(self)
		cmd.Env = append(os.Environ(), envMember+"="+string(text))
		cmd.Stderr = os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if out, err = cmd.StdoutPipe(); err != nil {
			return nil, err
		}
	}
	free, err := fleet.StartOnThread(cmd)
	if err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	p.cmd, p.free, p.ended = cmd, free, ended
	go func() { // ends with the process; Kill waits for it
		_ = cmd.Wait() // mostly the status of the signal that ended it
		close(ended)
	}()
	return func() error {
		if out == nil {
			return outsideReady(p.cfg.Listen, ended)
		}
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if address, ok := strings.CutPrefix(lines.Text(), readyLine); ok {
				p.cfg.Listen = address
				return nil
			}
		}
		return errors.New("ended before it served")
	}, nil
}

// Endpoint is the host:port clients use. It stays the same over a Restart.
func (p *EtcdProcess) Endpoint() string { return p.cfg.Listen }

// Client makes a client that is closed when the test ends.
func (p *EtcdProcess) Client(t testing.TB) *clientv3.Client {
	t.Helper()
	return Client(t, p.cfg.Listen)
}

// Kill ends the member as a crash does, and waits until it has exited.
func (p *EtcdProcess) Kill() {
	if p.cmd == nil {
		return
	}
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Errorf("kill etcd member: %v", err)
	}
	<-p.ended
	p.free()
	p.cmd, p.free = nil, nil
}

// Pause stops the member as a suspended machine does: it keeps its sockets and
// answers nothing. When it returns, all its threads are stopped.
func (p *EtcdProcess) Pause() {
	p.t.Helper()
	p.signal(syscall.SIGSTOP)
	Eventually(p.t, 30*time.Second, func() error { return stopped(p.cmd.Process.Pid) })
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
	if p.cmd == nil {
		p.t.Fatal("etcd member: not running")
	}
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatalf("etcd member: %v", err)
	}
}

// Restart starts the member again on the same data and port. A running one is
// killed first.
func (p *EtcdProcess) Restart() {
	p.t.Helper()
	p.Kill()
	p.start()
}

// Wipe kills the member and throws its data away: after Restart it is another,
// empty store at the same address, with the same member id.
func (p *EtcdProcess) Wipe() {
	p.t.Helper()
	p.Kill()
	require.NoError(p.t, os.RemoveAll(p.cfg.Dir))
	require.NoError(p.t, os.MkdirAll(p.cfg.Dir, 0o700))
}
