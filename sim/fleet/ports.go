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

// The range is below Linux's default range of source ports (32768 and up), so that
// no outgoing connection takes a free port before its owner binds it.
const (
	firstPort = 20000
	lastPort  = 32000
)

// ErrNoPort is returned if every port of the range is taken.
var ErrNoPort = errors.New("no free port found")

// FreePorts returns n different free TCP ports of 127.0.0.1. They are not
// reserved, but all callers of one user on this machine share one sequence: a port
// is returned again only after all others of the range, so that fleets that start
// at the same time get different ports.
func FreePorts(n int) ([]int, error) {
	seq, err := lockSequence()
	if err != nil {
		return nil, err
	}
	defer seq.Close()
	ports := make([]int, 0, n)
	for range lastPort - firstPort {
		if len(ports) == n {
			break
		}
		port := seq.port()
		if free(port) {
			ports = append(ports, port)
		}
	}
	if len(ports) < n {
		return nil, ErrNoPort
	}
	return ports, seq.save()
}

// free reports whether a port can be bound. It blocks forks: a child would inherit
// the socket until its exec, and the port's owner, which binds it a moment later,
// would find it taken.
func free(port int) bool {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		return false
	}
	defer syscall.Close(fd) //nolint:errcheck // no data was sent
	syscall.CloseOnExec(fd)
	// Every listener sets this option, so connections in TIME_WAIT do not count.
	if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		return false
	}
	return syscall.Bind(fd, &syscall.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}) == nil
}

// commonDir holds the file of the sequence, which all processes must find even if
// their TMPDIR differs.
const commonDir = "/tmp"

// sequence is the exclusive lock on the file that holds the next port. Among all
// processes of a user, only one goroutine holds the lock at a time.
type sequence struct {
	file *os.File
	next int // offset to firstPort
}

func lockSequence() (*sequence, error) {
	name := fmt.Sprintf("pdmesh-ports-%d", os.Getuid())
	open := func(dir string) (*os.File, error) {
		return os.OpenFile(filepath.Join(dir, name), os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	}
	f, err := open(commonDir)
	if err != nil {
		f, err = open(os.TempDir())
	}
	if err != nil {
		return nil, fmt.Errorf("open the sequence of ports: %w", err)
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
	text := make([]byte, 16)
	n, _ := f.ReadAt(text, 0) // an empty file ends early; an invalid one starts again
	next, err := strconv.Atoi(strings.TrimSpace(string(text[:n])))
	if err != nil || next < 0 || next >= lastPort-firstPort {
		next = rand.IntN(lastPort - firstPort)
	}
	return &sequence{file: f, next: next}, nil
}

// port returns the next port, free or not.
func (s *sequence) port() int {
	p := firstPort + s.next
	s.next = (s.next + 1) % (lastPort - firstPort)
	return p
}

// save writes the next port to the file.
func (s *sequence) save() error {
	if _, err := s.file.WriteAt(fmt.Appendf(nil, "%-15d\n", s.next), 0); err != nil {
		return fmt.Errorf("write the next port: %w", err)
	}
	return nil
}

// Close closes the file, which releases the lock.
func (s *sequence) Close() { s.file.Close() }

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
