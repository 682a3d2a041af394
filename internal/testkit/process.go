package testkit

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// The environment of a test binary that runs again as an etcd member.
const (
	envMember = "PDMESH_TEST_ETCD_MEMBER" // the data directory
	envListen = "PDMESH_TEST_ETCD_LISTEN" // the client address
)

// MaybeRunEtcd is called first in the TestMain of a package that uses
// StartEtcdProcess: in the child process it runs the etcd member and never
// returns, in the test process it does nothing.
func MaybeRunEtcd() {
	dir := os.Getenv(envMember)
	if dir == "" {
		return
	}
	os.Exit(member(dir, os.Getenv(envListen)))
}

func member(dir, listen string) int {
	server, err := runEtcd(dir, listen)
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
	t      testing.TB
	dir    string
	listen string
	cmd    *exec.Cmd
}

// StartEtcdProcess starts an etcd member on a free port. The package's
// TestMain must call MaybeRunEtcd first.
func StartEtcdProcess(t testing.TB) *EtcdProcess {
	t.Helper()
	p := &EtcdProcess{t: t, dir: t.TempDir(), listen: "127.0.0.1:0"}
	p.start()
	t.Cleanup(p.Kill)
	return p
}

func (p *EtcdProcess) start() {
	p.t.Helper()
	self, err := os.Executable()
	if err != nil {
		p.t.Fatalf("etcd member: %v", err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), envMember+"="+p.dir, envListen+"="+p.listen)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		p.t.Fatalf("etcd member: %v", err)
	}
	if err := cmd.Start(); err != nil {
		p.t.Fatalf("etcd member: %v", err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if address, ok := strings.CutPrefix(lines.Text(), readyLine); ok {
			p.cmd, p.listen = cmd, address
			return
		}
	}
	p.t.Fatalf("etcd member ended before it served: %v", cmd.Wait())
}

// Endpoint is the host:port clients use. It stays the same over a Restart.
func (p *EtcdProcess) Endpoint() string { return p.listen }

// Client makes a client that is closed when the test ends.
func (p *EtcdProcess) Client(t testing.TB) *clientv3.Client {
	t.Helper()
	return Client(t, p.listen)
}

// Kill ends the member as a crash does, and waits until it is gone.
func (p *EtcdProcess) Kill() {
	if p.cmd == nil {
		return
	}
	if err := p.cmd.Process.Kill(); err != nil {
		p.t.Errorf("kill etcd member: %v", err)
	}
	// Its exit status is that of the signal: nothing to learn from it.
	_ = p.cmd.Wait()
	p.cmd = nil
}

// Pause stops the member as a suspended machine does: it keeps its sockets and
// answers nothing.
func (p *EtcdProcess) Pause() { p.signal(syscall.SIGSTOP) }

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
	if err := os.RemoveAll(p.dir); err != nil {
		p.t.Fatalf("wipe etcd: %v", err)
	}
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		p.t.Fatalf("wipe etcd: %v", err)
	}
}
