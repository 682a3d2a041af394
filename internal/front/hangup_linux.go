package front

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
)

// watcher finds the clients that have left. One epoll watches all connections, and
// the runtime's poller waits for that epoll. A connection costs one system call in
// its life, a request none.
type watcher struct {
	file *os.File // the epoll
	raw  syscall.RawConn

	mu        sync.Mutex // guards what follows
	lastToken uint64
	conns     map[uint64]*conn
}

// hangupEvents are the events of a peer that has closed its side, and of a broken
// connection. A client that has closed only its sending side is taken for gone, as by
// net/http: a FIN looks the same in both cases.
const hangupEvents = syscall.EPOLLRDHUP | syscall.EPOLLHUP | syscall.EPOLLERR

// edgeTriggered is EPOLLET, which package syscall has as a negative number.
const edgeTriggered = 1 << 31

func newWatcher() (*watcher, error) {
	fd, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create an epoll: %w", err)
	}
	if err := syscall.SetNonblock(fd, true); err != nil {
		_ = syscall.Close(fd)
		return nil, fmt.Errorf("create an epoll: %w", err)
	}
	w := &watcher{file: os.NewFile(uintptr(fd), "epoll of clients"), conns: map[uint64]*conn{}}
	if w.raw, err = w.file.SyscallConn(); err != nil {
		_ = w.file.Close()
		return nil, fmt.Errorf("create an epoll: %w", err)
	}
	return w, nil
}

// add watches a connection until it is closed.
func (w *watcher) add(c *conn) error {
	w.mu.Lock()
	w.lastToken++
	c.token = w.lastToken
	w.conns[c.token] = c
	w.mu.Unlock()
	var added, open error
	closed := c.raw.Control(func(fd uintptr) {
		open = w.raw.Control(func(epoll uintptr) {
			e := syscall.EpollEvent{Events: hangupEvents | edgeTriggered, Fd: int32(uint32(c.token)), Pad: int32(uint32(c.token >> 32))}
			added = syscall.EpollCtl(int(epoll), syscall.EPOLL_CTL_ADD, int(fd), &e)
		})
	})
	if err := errors.Join(closed, open, added); err != nil {
		w.remove(c)
		return fmt.Errorf("watch a client: %w", err)
	}
	return nil
}

// forget ends the watch of a connection that is handed over.
func (w *watcher) forget(c *conn) {
	w.remove(c)
	_ = c.raw.Control(func(fd uintptr) {
		_ = w.raw.Control(func(epoll uintptr) {
			_ = syscall.EpollCtl(int(epoll), syscall.EPOLL_CTL_DEL, int(fd), nil)
		})
	})
}

// remove ends the watch of a connection that is closed or about to be: the kernel
// takes a closed socket off the epoll.
func (w *watcher) remove(c *conn) {
	w.mu.Lock()
	delete(w.conns, c.token)
	w.mu.Unlock()
}

// run ends the contexts of connections whose clients have left, until close.
func (w *watcher) run() {
	var events [128]syscall.EpollEvent
	_ = w.raw.Read(func(fd uintptr) bool { // returns when the file is closed
		for {
			n, err := syscall.EpollWait(int(fd), events[:], 0)
			if err == syscall.EINTR {
				continue
			}
			if n <= 0 {
				return false
			}
			for _, e := range events[:n] {
				w.clientGone(uint64(uint32(e.Fd)) | uint64(uint32(e.Pad))<<32)
			}
		}
	})
}

func (w *watcher) clientGone(token uint64) {
	w.mu.Lock()
	c := w.conns[token]
	w.mu.Unlock()
	if c != nil {
		c.clientGone()
	}
}

func (w *watcher) close() error { return w.file.Close() }
