package floor

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/pdmesh/pdmesh/bench/answer"
)

// Floor is a listener with its instances. It belongs to the one goroutine that
// serves.
type Floor struct {
	listener, poll, wake int
	address              string
	prefill, decode      pool
	conns                []conn // by descriptor; nil where there is none
	scratch              []byte // what was read from an instance, passed on at once
	ask, front           []byte // what opens a first and a second leg's body
}

// conn is a client or a leg.
type conn interface {
	// ready is called with what epoll tells; it may be out of date.
	ready(events uint32) error
}

// readAtOnce is how much of an answer is read, and so written, at once.
const readAtOnce = 16 << 10

// Listen takes the address; connections wait until Serve.
func Listen(o Options) (*Floor, error) {
	f := &Floor{listener: -1, poll: -1, wake: -1, scratch: make([]byte, readAtOnce), ask: []byte("{" + answer.Ask)}
	if err := f.listen(o); err != nil {
		f.close()
		return nil, err
	}
	return f, nil
}

func (f *Floor) listen(o Options) (err error) {
	if f.prefill, err = newPool(o.Prefill, true); err != nil {
		return err
	}
	if f.decode, err = newPool(o.Decode, false); err != nil {
		return err
	}
	if f.poll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("epoll: %w", err)
	}
	if f.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return fmt.Errorf("eventfd: %w", err)
	}
	if f.listener, f.address, err = listen(o.Listen); err != nil {
		return err
	}
	return errors.Join(watch(f.poll, f.wake, unix.EPOLLIN), watch(f.poll, f.listener, unix.EPOLLIN))
}

// Address is where it listens.
func (f *Floor) Address() string { return f.address }

// Serve serves until ctx ends, or something happens that it does not know; then
// everything is closed.
func (f *Floor) Serve(ctx context.Context) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer f.close()
	woken := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(woken)
		// The counter takes more than one.
		_, _ = unix.Write(f.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	})
	defer func() {
		if !stop() {
			<-woken // it must not write to what has been closed
		}
	}()
	var events [256]unix.EpollEvent
	for {
		n := wait(f.poll, events[:])
		if n == -int(unix.EINTR) {
			continue // Go's scheduler asks for a moment
		}
		if n < 0 {
			return fmt.Errorf("%w: epoll_pwait: %w", ErrSurprise, reason(n))
		}
		for i := range events[:n] {
			var err error
			switch fd := int(events[i].Fd); fd {
			case f.wake:
				return nil
			case f.listener:
				err = f.accept()
			default:
				if c := f.conns[fd]; c != nil { // else it was closed in this round
					err = c.ready(events[i].Events)
				}
			}
			if err != nil {
				return err
			}
		}
	}
}

func (f *Floor) accept() error {
	for {
		fd, _, err := unix.Accept4(f.listener, socketFlags)
		switch {
		case err == unix.EAGAIN:
			return nil
		case err == unix.ECONNABORTED:
			continue
		case err != nil:
			return fmt.Errorf("%w: accept: %w", ErrSurprise, err)
		}
		f.add(fd, newClient(f, fd))
		if err := errors.Join(noDelay(fd), watch(f.poll, fd, anything)); err != nil {
			return err
		}
	}
}

func (f *Floor) add(fd int, c conn) {
	for len(f.conns) <= fd {
		f.conns = append(f.conns, nil)
	}
	f.conns[fd] = c
}

// drop closes a connection; what epoll may still tell about it is not heard.
func (f *Floor) drop(fd int) {
	f.conns[fd] = nil
	hangUp(fd)
}

func (f *Floor) close() {
	for fd, c := range f.conns {
		if c != nil {
			hangUp(fd)
		}
	}
	f.conns = nil
	for _, fd := range []int{f.listener, f.wake, f.poll} {
		if fd >= 0 {
			hangUp(fd)
		}
	}
}
