// Package conns closes connections as a crashing engine does: all together, with RST.
package conns

import (
	"maps"
	"net"
	"slices"
	"sync"
)

// Listener tracks its open connections so that all can be closed together.
type Listener struct {
	net.Listener

	mu    sync.Mutex // guards conns and shut
	conns map[*conn]struct{}
	shut  bool
}

type conn struct {
	*net.TCPConn
	l *Listener
}

// Track returns a Listener that tracks the TCP connections accepted by a listener.
func Track(ln net.Listener) *Listener {
	return &Listener{Listener: ln, conns: make(map[*conn]struct{})}
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &conn{TCPConn: raw.(*net.TCPConn), l: l}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.shut {
		SetReset(c)
		_ = c.TCPConn.Close()
		return nil, net.ErrClosed
	}
	l.conns[c] = struct{}{}
	return c, nil
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.l.mu.Lock()
	delete(c.l.conns, c)
	c.l.mu.Unlock()
	return c.TCPConn.Close()
}

// SetReset makes the next Close of one of these connections send RST.
func SetReset(c net.Conn) {
	if c, ok := c.(*conn); ok {
		_ = c.SetLinger(0)
	}
}

// ResetAll closes the listener and resets every connection.
func (l *Listener) ResetAll() {
	l.mu.Lock()
	l.shut = true
	open := slices.Collect(maps.Keys(l.conns))
	l.mu.Unlock()
	_ = l.Listener.Close()
	for _, c := range open {
		SetReset(c)
		_ = c.Close()
	}
}
