package awake

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Guard keeps the process awake until Stop.
//
// Go's scheduler asks its poller, without waiting, only when nothing can run, and
// then it sleeps. So a goroutine that is always ready looks at the poller's own
// descriptor, at which the runtime's events show. If some do, it waits for one that
// it causes itself, so that nothing can run and the scheduler takes all of them.
type Guard struct {
	over  atomic.Bool
	done  chan struct{}
	looks atomic.Uint64

	pollers []unix.PollFd
	own     *os.File // an eventfd
	raw     syscall.RawConn
	caused  bool
	step    func(fd uintptr) bool
	err     error
}

// Keep begins. It needs the one core that Go is to run on (GOMAXPROCS of 1), which
// it takes all of.
func Keep() (*Guard, error) {
	if n := runtime.GOMAXPROCS(0); n != 1 {
		return nil, fmt.Errorf("awake: GOMAXPROCS is %d, not 1", n)
	}
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("awake: %w", err)
	}
	g := &Guard{done: make(chan struct{}), own: os.NewFile(uintptr(fd), "eventfd")}
	g.step = g.cause
	g.raw, err = g.own.SyscallConn()
	if err == nil {
		g.pollers, err = pollers()
	}
	if err != nil {
		return nil, fmt.Errorf("awake: %w", errors.Join(err, g.own.Close()))
	}
	go g.run()
	return g, nil
}

// Stop lets the process sleep again. The error is why it could before.
func (g *Guard) Stop() error {
	g.over.Store(true)
	<-g.done
	return errors.Join(g.err, g.own.Close())
}

// Looks is how often the guard has found that nothing had come.
func (g *Guard) Looks() uint64 { return g.looks.Load() }

func (g *Guard) run() {
	defer close(g.done)
	for !g.over.Load() {
		some, err := g.look()
		switch {
		case err != nil:
			g.err = fmt.Errorf("awake: look at the poller: %w", err)
			return
		case some:
			g.caused = false
			if err := g.raw.Read(g.step); err != nil {
				g.err = fmt.Errorf("awake: wait for the poller: %w", err)
				return
			}
		default:
			g.looks.Add(1)
		}
		runtime.Gosched() // timers too
	}
}

// look reports whether a poller has events.
func (g *Guard) look() (bool, error) {
	var now unix.Timespec
	n, _, e := syscall.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(unsafe.SliceData(g.pollers))), uintptr(len(g.pollers)),
		uintptr(unsafe.Pointer(&now)), 0, 0, 0)
	if e != 0 && e != unix.EINTR {
		return false, e
	}
	return e == 0 && n > 0, nil
}

// cause is given to Read, which has forgotten former events by then: it causes one,
// and is called again when the poller has told of it.
func (g *Guard) cause(fd uintptr) bool {
	if g.caused {
		return true
	}
	g.caused = true
	one := uint64(1) // 2^64 of them would be too many
	_, _, e := syscall.RawSyscall(unix.SYS_WRITE, fd, uintptr(unsafe.Pointer(&one)), unsafe.Sizeof(one))
	return e != 0 // nothing to wait for then
}

// errNoPoller says that Go does not wait with epoll, or that /proc is not there.
var errNoPoller = errors.New("no epoll descriptor found")

// pollers finds the descriptors of this process that others' events show at. One
// that is not Go's does no harm if nothing is left unseen there.
func pollers() (out []unix.PollFd, err error) {
	const dir = "/proc/self/fd"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		to, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err != nil || to != "anon_inode:[eventpoll]" {
			continue // closed meanwhile, or something else
		}
		fd, err := strconv.ParseInt(e.Name(), 10, 32)
		if err != nil {
			return nil, err
		}
		out = append(out, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	}
	if len(out) == 0 {
		return nil, errNoPoller
	}
	return out, nil
}
