// Package tcpserver runs the TCP servers of simulated peers.
package tcpserver

import (
	"context"
	"errors"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/pdmesh/pdmesh/internal/cli/sleep"
)

// WhenFree repeats listen for up to 5 s while its address is in use: a process that is being
// forked has copies of closed listeners until its exec.
func WhenFree(ctx context.Context, listen func() error) error {
	for tries := 1; ; tries++ {
		err := listen()
		if !errors.Is(err, syscall.EADDRINUSE) || tries == 250 || !sleep.For(ctx, 20*time.Millisecond) {
			return err
		}
	}
}

// Server calls a function for each connection of a listener. It is safe for concurrent use.
type Server struct {
	ln net.Listener
	wg sync.WaitGroup

	mu    sync.Mutex // guards conns, which is nil after Close
	conns map[net.Conn]struct{}
}

// Serve accepts connections, and calls handle for each of them in a goroutine, with its number
// from 0. A connection is closed when its handle returns.
func Serve(ln net.Listener, handle func(n int, c net.Conn)) *Server {
	s := &Server{ln: ln, conns: make(map[net.Conn]struct{})}
	s.wg.Go(func() { s.accept(handle) })
	return s
}

func (s *Server) accept(handle func(n int, c net.Conn)) {
	for n := 0; ; {
		c, err := s.ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // probably out of descriptors
			<-time.NewTimer(10 * time.Millisecond).C
			continue
		}
		s.mu.Lock()
		if s.conns == nil {
			s.mu.Unlock()
			_ = c.Close()
			return
		}
		s.conns[c] = struct{}{}
		number := n
		s.wg.Go(func() {
			handle(number, c)
			_ = c.Close()
			s.mu.Lock()
			delete(s.conns, c)
			s.mu.Unlock()
		})
		s.mu.Unlock()
		n++
	}
}

// Addr returns the address of the listener.
func (s *Server) Addr() net.Addr { return s.ln.Addr() }

// Close closes the listener and all connections, and blocks until every handle has returned.
func (s *Server) Close() {
	_ = s.ln.Close()
	s.mu.Lock()
	for c := range s.conns {
		_ = c.Close()
	}
	s.conns = nil
	s.mu.Unlock()
	s.wg.Wait()
}

// Reset closes a TCP connection with RST.
func Reset(c net.Conn) {
	if tc, ok := c.(*net.TCPConn); ok {
		_ = tc.SetLinger(0) // the connection is closed in any case
	}
	_ = c.Close() // it may be closed already
}
