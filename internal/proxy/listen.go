package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/pdmesh/pdmesh/internal/proxy/config"
	"github.com/pdmesh/pdmesh/internal/transport/sock"
)

// listeners are the sockets of the proxy's servers.
type listeners struct {
	clients net.Listener
	admin   net.Listener // nil without --admin-listen
	pprof   net.Listener // nil without --pprof-listen
}

// openListeners binds all addresses, or none.
func openListeners(cfg *config.Proxy) (*listeners, error) {
	ln := &listeners{}
	for _, one := range []struct {
		ln            *net.Listener
		address, flag string
	}{
		{&ln.clients, net.JoinHostPort(cfg.Host, strconv.Itoa(cfg.Port)), "--port"},
		{&ln.admin, cfg.AdminListen, "--admin-listen"},
		{&ln.pprof, cfg.PprofListen, "--pprof-listen"},
	} {
		if one.address == "" {
			continue
		}
		var err error
		if *one.ln, err = listen(one.address, one.flag); err != nil {
			ln.close()
			return nil, err
		}
	}
	return ln, nil
}

// adminURL returns the base URL by which others can reach the operator routes.
func (l *listeners) adminURL(ctx context.Context, scheme string, etcd []string) string {
	ln := l.clients
	if l.admin != nil {
		ln = l.admin
	}
	return scheme + "://" + reachable(ctx, ln, etcd)
}

// reachable returns the address by which others can reach a listener. For a listener on all addresses,
// it uses the local IP address of the route to etcd.
func reachable(ctx context.Context, ln net.Listener, etcd []string) string {
	host, port, _ := net.SplitHostPort(ln.Addr().String())
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
		target := "192.0.2.1:9" // reserved by RFC 5737: selects the source address of the default route
		if len(etcd) > 0 {
			target = etcd[0]
		}
		dialer := net.Dialer{Timeout: time.Second}
		if c, err := dialer.DialContext(ctx, "udp", target); err == nil { // sends nothing
			host, _, _ = net.SplitHostPort(c.LocalAddr().String())
			_ = c.Close()
		}
	}
	return net.JoinHostPort(host, port)
}

// quickListener accepts TCP connections that read and write through package sock. Streams write once
// per event, and writes through package net use a quarter more CPU.
type quickListener struct {
	net.Listener
	idle time.Duration // --idle-timeout; a client that reads nothing for twice that long is cut
}

// Accept implements net.Listener.
func (l quickListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if tcp, ok := c.(*net.TCPConn); ok && err == nil {
		if quick, err := sock.New(tcp); err == nil {
			limitUnsent(quick.Raw())
			sock.LimitSilence(quick.Raw(), max(2*l.idle, time.Minute)) // longer than usual outages of a network
			return &clientConn{Conn: quick}, nil
		}
	}
	return c, err
}

// limitUnsent sets TCP_NOTSENT_LOWAT on Linux, so that a socket buffer accepts at most 128 KiB of unsent
// data. Linux grows the buffer to 4 MiB for a large answer. A write then blocks until the client has read
// a third of it, and a slow client misses the write deadline. A kernel without the option is no error.
func limitUnsent(c syscall.RawConn) {
	const notSentLowWater = 25 // TCP_NOTSENT_LOWAT, in bytes
	if runtime.GOOS == "linux" {
		_ = c.Control(func(fd uintptr) {
			_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, notSentLowWater, 128<<10)
		})
	}
}

// clientConn is a connection of a client. A read deadline that passed while the process or its machine
// was suspended does not end a read: the data that the client sent meanwhile is still unread. Otherwise,
// the server would reset the connection of a request that it can serve.
type clientConn struct {
	*sock.Conn

	mu  sync.Mutex // guards the deadline and due
	due time.Time  // the deadline, if it was in the future when it was set
}

const (
	// suspended is the delay after a deadline from which the process counts as suspended.
	suspended = time.Second
	// suspendedRead is the time limit of the read after a suspension.
	suspendedRead = 5 * time.Second
)

// SetReadDeadline implements net.Conn.
func (c *clientConn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.due = time.Time{}
	if !t.IsZero() && time.Now().Before(t) {
		c.due = t
	}
	return c.Conn.SetReadDeadline(t)
}

// Read implements net.Conn.
func (c *clientConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil && errors.Is(err, os.ErrDeadlineExceeded) && c.extend() {
		n, err = c.Conn.Read(p)
	}
	return n, err
}

// extend sets a new deadline, and reports true, if the process was suspended at the last one. It does so
// once for each deadline.
func (c *clientConn) extend() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.due.IsZero() || time.Since(c.due) < suspended {
		return false
	}
	c.due = time.Time{}
	return c.Conn.SetReadDeadline(time.Now().Add(suspendedRead)) == nil
}

// close closes the listeners. A server that was shut down has already closed its listener.
func (l *listeners) close() {
	for _, ln := range []net.Listener{l.clients, l.admin, l.pprof} {
		if ln != nil {
			_ = ln.Close()
		}
	}
}

// listen binds the address of a flag.
func listen(address, flag string) (net.Listener, error) {
	ln, err := net.Listen("tcp", address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("address %s already in use: stop the other program or choose another address with %s", address, flag)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("not allowed to listen on %s: ports below 1024 need privileges; choose another with %s", address, flag)
	case err != nil:
		return nil, fmt.Errorf("listen on %s (%s): %w", address, flag, err)
	}
	return ln, nil
}
