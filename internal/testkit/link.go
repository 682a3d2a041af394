package testkit

import (
	"net"
	"sync"
	"testing"
	"time"
)

// Link is a TCP relay in front of a server, whose line can be cut and frozen.
type Link struct {
	t      testing.TB
	target string
	lis    net.Listener
	wg     sync.WaitGroup
	ended  chan struct{} // closed by the end of the test

	mu    sync.Mutex // guards all below
	cut   bool
	flow  chan struct{} // closed while bytes may flow
	conns map[net.Conn]struct{}
}

// StartLink starts a relay to target, a host:port. It ends with the test.
func StartLink(t testing.TB, target string) *Link {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("link: %v", err)
	}
	l := &Link{t: t, target: target, lis: lis, flow: make(chan struct{}), ended: make(chan struct{}), conns: make(map[net.Conn]struct{})}
	close(l.flow)
	l.wg.Go(l.accept)
	t.Cleanup(l.close)
	return l
}

// Address is the host:port to use instead of the target's.
func (l *Link) Address() string { return l.lis.Addr().String() }

// Cut resets every connection and refuses new ones until Restore.
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = true
	for c := range l.conns {
		reset(c)
	}
}

// Freeze lets no byte pass any more, without closing anything, as a network
// that drops every packet. New connections are taken and hang too.
func (l *Link) Freeze() {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.flow:
		l.flow = make(chan struct{})
	default: // frozen already
	}
}

// Restore ends Cut and Freeze.
func (l *Link) Restore() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = false
	select {
	case <-l.flow:
	default:
		close(l.flow)
	}
}

func (l *Link) close() {
	close(l.ended)
	if err := l.lis.Close(); err != nil {
		l.t.Logf("link: %v", err)
	}
	l.Cut()
	l.wg.Wait()
}

func (l *Link) accept() {
	for {
		in, err := l.lis.Accept()
		if err != nil {
			return
		}
		if !l.add(in) {
			reset(in)
			continue
		}
		l.wg.Go(func() { l.relay(in) })
	}
}

// add keeps a connection to be reset later; false: the link is cut.
func (l *Link) add(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut {
		return false
	}
	l.conns[c] = struct{}{}
	return true
}

func (l *Link) drop(c net.Conn) {
	l.mu.Lock()
	delete(l.conns, c)
	l.mu.Unlock()
	reset(c)
}

func (l *Link) relay(in net.Conn) {
	defer l.drop(in)
	out, err := net.DialTimeout("tcp", l.target, 5*time.Second)
	if err != nil {
		return
	}
	if !l.add(out) {
		reset(out)
		return
	}
	defer l.drop(out)
	var wg sync.WaitGroup
	wg.Go(func() { l.pump(out, in) })
	wg.Go(func() { l.pump(in, out) })
	wg.Wait()
}

// pump copies one direction and ends both when one end is gone.
func (l *Link) pump(to, from net.Conn) {
	defer reset(to)
	defer reset(from)
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if !l.mayPass() {
			return
		}
		if n > 0 {
			if _, werr := to.Write(buf[:n]); werr != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// mayPass waits while the link is frozen.
func (l *Link) mayPass() bool {
	l.mu.Lock()
	flow := l.flow
	l.mu.Unlock()
	select {
	case <-flow:
		return true
	case <-l.ended:
		return false
	}
}

// reset closes a connection so that the other end sees a reset, not an end.
func reset(c net.Conn) {
	if tc, ok := c.(*net.TCPConn); ok {
		_ = tc.SetLinger(0) // the close that follows matters, not how
	}
	_ = c.Close() // may be closed already from the other side of the relay
}
