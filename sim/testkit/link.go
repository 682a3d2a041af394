package testkit

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/tcpserver"
)

// Direction is one of the two ways through a Link.
type Direction int

// The directions.
const (
	ToServer Direction = iota
	ToClient
)

// Link is a TCP relay in front of a server, whose line can be cut, frozen,
// slowed down and torn in the ways in which networks do it.
type Link struct {
	t     testing.TB
	addr  string
	wg    sync.WaitGroup
	ended chan struct{} // closed by the end of the test

	mu     sync.Mutex // guards all below
	target string
	lis    net.Listener
	closed chan struct{} // closed when the port of lis is
	cut    bool
	flow   [2]chan struct{} // by direction; closed while bytes may flow
	passed [2]int64         // by direction, bytes
	delay  time.Duration
	rate   int // bytes per second; 0: no limit
	conns  map[net.Conn]end
}

// end reports what a connection of the link is connected to.
type end int

const (
	clientEnd end = iota
	serverEnd
)

// StartLink starts a relay to target, a host:port. It ends with the test.
func StartLink(t testing.TB, target string) *Link {
	t.Helper()
	return StartLinkAt(t, FreePort(t), target)
}

// StartLinkAt is StartLink with a given address to listen at.
func StartLinkAt(t testing.TB, address, target string) *Link {
	t.Helper()
	lis, err := net.Listen("tcp", address)
	require.NoError(t, err)
	return startLink(t, lis, target)
}

func startLink(t testing.TB, lis net.Listener, target string) *Link {
	l := &Link{
		t: t, target: target, addr: lis.Addr().String(), lis: lis,
		ended: make(chan struct{}), conns: make(map[net.Conn]end),
	}
	for d := range l.flow {
		l.flow[d] = make(chan struct{})
		close(l.flow[d])
	}
	l.serve(lis)
	t.Cleanup(l.close)
	return l
}

// Address is the host:port to use instead of the target's.
func (l *Link) Address() string { return l.addr }

// Passed counts the bytes that went on in one direction since the start.
func (l *Link) Passed(d Direction) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.passed[d]
}

// Cut resets every connection and whatever connects until Restore.
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = true
	l.resetAll()
}

// Reset resets every connection once; new ones are relayed.
func (l *Link) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.resetAll()
}

// Redirect puts another server behind the address, and resets every connection
// once so that its clients come to it.
func (l *Link) Redirect(target string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.target = target
	l.resetAll()
}

func (l *Link) resetAll() {
	for c := range l.conns {
		tcpserver.Reset(c)
	}
}

// Refuse closes the port until Restore, as a host does on which nothing
// listens. Open connections go on.
func (l *Link) Refuse() {
	l.mu.Lock()
	if l.lis != nil {
		_ = l.lis.Close() // ends its accept loop, and then the port is closed
		l.lis = nil
	}
	closed := l.closed
	l.mu.Unlock()
	<-closed
}

// Freeze lets no byte pass any more, without closing anything, as a network
// that drops every packet. New connections are taken and hang too. What was
// sent meanwhile arrives after Restore, as TCP repeats it.
func (l *Link) Freeze() {
	l.OneWay(ToServer)
	l.OneWay(ToClient)
}

// OneWay lets no byte pass in one direction; the other goes on.
func (l *Link) OneWay(d Direction) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.flow[d]:
		l.flow[d] = make(chan struct{})
	default: // frozen already
	}
}

// HalfOpen ends every connection at the server, without notifying the clients
// of it: what a server leaves behind whose machine lost its power. New
// connections hang until Restore.
func (l *Link) HalfOpen() {
	l.Freeze()
	l.mu.Lock()
	defer l.mu.Unlock()
	for c, e := range l.conns {
		if e == serverEnd {
			tcpserver.Reset(c)
		}
	}
}

// Delay lets each piece of data arrive d later, in both directions, as a long
// line does: a piece does not wait for the ones before it. 0 ends it.
func (l *Link) Delay(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.delay = d
}

// Slow lets at most rate bytes per second pass in each direction of a connection. 0 ends it.
func (l *Link) Slow(rate int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rate = rate
}

// Restore ends every fault. Connections that a HalfOpen has torn are reset now.
func (l *Link) Restore() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut, l.delay, l.rate = false, 0, 0
	for d := range l.flow {
		select {
		case <-l.flow[d]:
		default:
			close(l.flow[d])
		}
	}
	if l.lis != nil {
		return
	}
	var lis net.Listener
	err := tcpserver.WhenFree(context.Background(), func() (err error) { lis, err = net.Listen("tcp", l.addr); return err })
	if err != nil {
		l.t.Errorf("link: listen again: %v", err)
		return
	}
	l.serve(lis)
}

// serve accepts connections of lis. The caller holds l.mu, or is the only one that knows l.
func (l *Link) serve(lis net.Listener) {
	closed := make(chan struct{})
	l.lis, l.closed = lis, closed
	l.wg.Go(func() {
		defer close(closed)
		l.accept(lis)
	})
}

func (l *Link) close() {
	close(l.ended)
	l.Refuse()
	l.Cut()
	l.wg.Wait()
}

func (l *Link) accept(lis net.Listener) {
	for {
		in, err := lis.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			l.t.Errorf("link: %v", err)
			return
		}
		if !l.add(in, clientEnd) {
			tcpserver.Reset(in)
			continue
		}
		l.wg.Go(func() { l.relay(in) })
	}
}

// add keeps a connection to be reset later; false: the link is cut.
func (l *Link) add(c net.Conn, e end) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut {
		return false
	}
	l.conns[c] = e
	return true
}

func (l *Link) drop(c net.Conn) {
	l.mu.Lock()
	delete(l.conns, c)
	l.mu.Unlock()
	tcpserver.Reset(c)
}

func (l *Link) relay(in net.Conn) {
	defer l.drop(in)
	l.mu.Lock()
	target := l.target
	l.mu.Unlock()
	out, err := net.DialTimeout("tcp", target, 5*time.Second)
	if err != nil {
		l.mayPass(ToClient) // a frozen line does not deliver a refusal either
		return
	}
	if !l.add(out, serverEnd) {
		tcpserver.Reset(out)
		return
	}
	defer l.drop(out)
	var wg sync.WaitGroup
	wg.Go(func() { l.pump(out, in, ToServer) })
	wg.Go(func() { l.pump(in, out, ToClient) })
	wg.Wait()
}

// piece is what came of one direction at once.
type piece struct {
	data []byte
	due  time.Time // before which it does not arrive
}

// readAhead is how many pieces may be on the line.
const readAhead = 256

// pump copies one direction and ends both when one end is closed.
func (l *Link) pump(to, from net.Conn, d Direction) {
	line, hungUp := make(chan piece, readAhead), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { l.listen(from, line, hungUp) })
	for p := range line {
		// Also the end of a connection passes only when bytes may.
		if !l.mayPass(d) || !l.arrives(p.due) {
			break
		}
		if len(p.data) == 0 || !l.arrives(time.Now().Add(l.takes(len(p.data)))) {
			break
		}
		if _, err := to.Write(p.data); err != nil {
			break
		}
		l.mu.Lock()
		l.passed[d] += int64(len(p.data))
		l.mu.Unlock()
	}
	close(hungUp)
	tcpserver.Reset(to)
	tcpserver.Reset(from)
	wg.Wait()
}

// listen puts what comes on the line; the last piece, an empty one, is the end.
func (l *Link) listen(from net.Conn, line chan<- piece, hungUp <-chan struct{}) {
	defer close(line)
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		due := time.Now().Add(l.delayed())
		for _, data := range [][]byte{bytes.Clone(buf[:n]), nil} {
			if len(data) == 0 && err == nil {
				break
			}
			select {
			case line <- piece{data, due}:
			case <-hungUp:
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (l *Link) delayed() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.delay
}

// takes is the time that a slow line needs for n bytes.
func (l *Link) takes(n int) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rate <= 0 {
		return 0
	}
	return time.Duration(n) * time.Second / time.Duration(l.rate)
}

// mayPass waits while the direction is frozen. False: the test has ended.
func (l *Link) mayPass(d Direction) bool {
	l.mu.Lock()
	flow := l.flow[d]
	l.mu.Unlock()
	select {
	case <-flow:
		return true
	case <-l.ended:
		return false
	}
}

// arrives waits until a piece is due.
func (l *Link) arrives(due time.Time) bool {
	left := time.Until(due)
	if left <= 0 {
		return true
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-l.ended:
		return false
	}
}

// TLSFront accepts TLS connections with a configuration, relays them to a server without
// TLS, and returns its address.
func TLSFront(t testing.TB, config *tls.Config, target string) string {
	t.Helper()
	lis, err := tls.Listen("tcp", "127.0.0.1:0", config)
	require.NoError(t, err)
	return startLink(t, lis, target).Address()
}
