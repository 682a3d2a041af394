package zmq

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"
)

// Socket is a bound socket: it accepts peers within its Bounds and runs a function for
// each. Its methods are safe for concurrent use.
type Socket struct {
	kind    Kind
	bounds  Bounds
	onError func(remote string, err error)
	serve   func(closing <-chan struct{}, peer *Conn) error

	listener net.Listener
	closing  chan struct{}
	done     sync.WaitGroup

	mu     sync.Mutex
	peers  map[net.Conn]struct{}
	closed bool
}

// Bind binds a socket to an endpoint of the form that ParseEndpoint accepts, and calls serve
// in a separate goroutine for each peer after its handshake; Close closes closing. onError,
// if not nil, is called with the error of every peer that was refused or violated the
// protocol, but not when a peer disconnects.
func Bind(ctx context.Context, kind Kind, endpoint string, b Bounds, onError func(remote string, err error), serve func(closing <-chan struct{}, peer *Conn) error) (*Socket, error) {
	address, err := ParseEndpoint(endpoint)
	if err != nil {
		return nil, err
	}
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", endpoint, err)
	}
	if onError == nil {
		onError = func(string, error) {}
	}
	s := &Socket{
		kind: kind, bounds: b.filled(), onError: onError, serve: serve,
		listener: l, closing: make(chan struct{}), peers: make(map[net.Conn]struct{}),
	}
	s.done.Go(s.accept)
	return s, nil
}

// Addr returns the address to which the socket is bound.
func (s *Socket) Addr() net.Addr { return s.listener.Addr() }

// Close closes the socket and its peers' connections, and waits for their goroutines.
func (s *Socket) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return net.ErrClosed
	}
	s.closed = true
	close(s.closing)
	for c := range s.peers {
		_ = c.Close() // its reader reports the error
	}
	s.mu.Unlock()
	err := s.listener.Close()
	s.done.Wait()
	if err != nil {
		return fmt.Errorf("close: %w", err)
	}
	return nil
}

// acceptPause is the pause after a failed accept, for example without free descriptors.
const acceptPause = 100 * time.Millisecond

func (s *Socket) accept() {
	for {
		c, err := s.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			s.onError("", err)
			select {
			case <-s.closing:
				return
			case <-time.After(acceptPause):
			}
			continue
		}
		if err := s.admit(c); err != nil {
			_ = c.Close() // it was refused
			s.onError(c.RemoteAddr().String(), err)
		}
	}
}

// admit starts to serve a peer, unless there are too many.
func (s *Socket) admit(c net.Conn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return net.ErrClosed
	case len(s.peers) >= s.bounds.Peers:
		return ErrTooManyPeers
	}
	s.peers[c] = struct{}{}
	s.done.Go(func() { s.serveConn(c) })
	return nil
}

// serveConn serves a peer until it disconnects, which is no error.
func (s *Socket) serveConn(c net.Conn) {
	peer, err := open(c, s.kind, s.bounds)
	if err == nil {
		if err = s.serve(s.closing, peer); disconnected(err) {
			err = nil
		}
	}
	_ = c.Close() // nothing more is written
	s.mu.Lock()
	delete(s.peers, c)
	closed := s.closed
	s.mu.Unlock()
	if err != nil && !closed {
		s.onError(c.RemoteAddr().String(), err)
	}
}

// disconnected reports whether err means that the peer closed the connection.
func disconnected(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
