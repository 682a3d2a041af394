package fleet

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Ports are looked for below the range from which Linux takes the source ports
// of outgoing connections (32768 and up), so that a port that was found free is
// not gone again before its owner has bound it.
const (
	firstPort = 20000
	lastPort  = 32000
)

// ErrNoPort means that every port tried was taken.
var ErrNoPort = errors.New("no free port found")

// FreePorts finds n different free TCP ports on 127.0.0.1. Nothing holds them,
// but everybody on this machine who asks here takes turns: a port comes again
// only after all others of the range, so that two fleets that start at the same
// time do not bind each other's.
func FreePorts(n int) ([]int, error) {
	turn, err := takeTurn()
	if err != nil {
		return nil, err
	}
	defer turn.Close()
	ports := make([]int, 0, n)
	for range lastPort - firstPort {
		if len(ports) == n {
			break
		}
		port := turn.port()
		if free(port) {
			ports = append(ports, port)
		}
	}
	if len(ports) < n {
		return nil, ErrNoPort
	}
	return ports, turn.pass()
}

// free reports whether a port can be bound. No process is forked meanwhile: until
// its exec it would hold a copy of the socket, and the port's owner, who comes a
// moment later, would find it taken.
func free(port int) bool {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		return false
	}
	defer syscall.Close(fd) //nolint:errcheck // nothing was sent
	syscall.CloseOnExec(fd)
	// As everybody who listens sets it: connections that are over do not count.
	if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		return false
	}
	return syscall.Bind(fd, &syscall.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}) == nil
}

// commonDir is where the file lies that everybody must find, whatever TMPDIR says
// to some of them.
const commonDir = "/tmp"

// turn is the right to hand out ports, held by one process and goroutine of this
// user at a time: an exclusive lock on the file that says which port comes next.
type turn struct {
	file *os.File
	next int // offset to firstPort
}

func takeTurn() (*turn, error) {
	name := fmt.Sprintf("pdmesh-ports-%d", os.Getuid())
	open := func(dir string) (*os.File, error) {
		return os.OpenFile(filepath.Join(dir, name), os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	}
	f, err := open(commonDir)
	if err != nil {
		f, err = open(os.TempDir())
	}
	if err != nil {
		return nil, fmt.Errorf("whose turn it is to take a port: %w", err)
	}
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", name, err)
	}
	said := make([]byte, 16)
	n, _ := f.ReadAt(said, 0) // an empty file ends early, and a bad one is begun again
	next, err := strconv.Atoi(strings.TrimSpace(string(said[:n])))
	if err != nil || next < 0 || next >= lastPort-firstPort {
		next = rand.IntN(lastPort - firstPort)
	}
	return &turn{file: f, next: next}, nil
}

// port is the next port in turn, free or not.
func (t *turn) port() int {
	p := firstPort + t.next
	t.next = (t.next + 1) % (lastPort - firstPort)
	return p
}

// pass writes down who comes next.
func (t *turn) pass() error {
	if _, err := t.file.WriteAt(fmt.Appendf(nil, "%-15d\n", t.next), 0); err != nil {
		return fmt.Errorf("write down the next port: %w", err)
	}
	return nil
}

// Close ends the turn: closing the file gives up the lock.
func (t *turn) Close() { t.file.Close() }

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
