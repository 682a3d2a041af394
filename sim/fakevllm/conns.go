package fakevllm

import (
	"net"
	"net/http"
	"sync"
)

// listener remembers its open connections so that all can be ended at once.
type listener struct {
	net.Listener

	mu    sync.Mutex // guards conns and shut
	conns map[*conn]struct{}
	shut  bool
}

type conn struct {
	*net.TCPConn
	l    *listener
	idle bool // guarded by l.mu
}

func track(ln net.Listener) *listener {
	return &listener{Listener: ln, conns: make(map[*conn]struct{})}
}

// Accept is net.Listener's.
func (l *listener) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &conn{TCPConn: raw.(*net.TCPConn), l: l}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.shut {
		setReset(c)
		_ = c.TCPConn.Close()
		return nil, net.ErrClosed
	}
	l.conns[c] = struct{}{}
	return c, nil
}

// Close is net.Conn's.
func (c *conn) Close() error {
	c.l.mu.Lock()
	delete(c.l.conns, c)
	c.l.mu.Unlock()
	return c.TCPConn.Close()
}

// setReset makes the next Close send RST.
func setReset(c net.Conn) {
	if c, ok := c.(*conn); ok {
		_ = c.SetLinger(0)
	}
}

// resetAll closes the listener and ends every connection by RST.
func (l *listener) resetAll() {
	l.mu.Lock()
	l.shut = true
	open := make([]*conn, 0, len(l.conns))
	for c := range l.conns {
		open = append(open, c)
	}
	l.mu.Unlock()
	_ = l.Listener.Close()
	for _, c := range open {
		setReset(c)
		_ = c.Close()
	}
}

// state is http.Server's ConnState hook.
func (l *listener) state(nc net.Conn, st http.ConnState) {
	c, ok := nc.(*conn)
	if !ok {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	c.idle = st == http.StateIdle
}

// closeIdle ends idle connections by FIN.
func (l *listener) closeIdle() {
	l.mu.Lock()
	var idle []*conn
	for c := range l.conns {
		if c.idle {
			idle = append(idle, c)
		}
	}
	l.mu.Unlock()
	for _, c := range idle {
		_ = c.Close()
	}
}
