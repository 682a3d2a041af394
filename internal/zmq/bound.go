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

// bound accepts peers within the bounds, and runs a function for each.
type bound struct {
	kind    Kind
	bounds  Bounds
	trouble func(remote string, err error)
	serve   func(*Conn) error

	listener net.Listener
	closing  chan struct{}
	done     sync.WaitGroup

	mu     sync.Mutex
	peers  map[net.Conn]struct{}
	closed bool
}

func (s *bound) bind(ctx context.Context, kind Kind, endpoint string, b Bounds, trouble func(remote string, err error), serve func(*Conn) error) error {
	address, err := ParseEndpoint(endpoint)
	if err != nil {
		return err
	}
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("listen at %s: %w", endpoint, err)
	}
	s.kind, s.bounds, s.trouble, s.serve = kind, b.filled(), trouble, serve
	if s.trouble == nil {
		s.trouble = func(string, error) {}
	}
	s.listener, s.closing, s.peers = l, make(chan struct{}), make(map[net.Conn]struct{})
	s.done.Go(s.accept)
	return nil
}

// Addr is where the socket is bound.
func (s *bound) Addr() net.Addr { return s.listener.Addr() }

// Close ends the socket and all its peers' connections. It returns when nothing of
// them runs any more.
func (s *bound) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return net.ErrClosed
	}
	s.closed = true
	close(s.closing)
	for c := range s.peers {
		_ = c.Close() // its reader says what there is to say
	}
	s.mu.Unlock()
	err := s.listener.Close()
	s.done.Wait()
	if err != nil {
		return fmt.Errorf("close: %w", err)
	}
	return nil
}

// acceptPause is between two tries where a connection cannot be taken (no
// descriptors left).
const acceptPause = 100 * time.Millisecond

func (s *bound) accept() {
	for {
		c, err := s.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			s.trouble("", err)
			again := time.NewTimer(acceptPause)
			select {
			case <-s.closing:
				again.Stop()
				return
			case <-again.C:
			}
			continue
		}
		if err := s.admit(c); err != nil {
			_ = c.Close() // it was refused
			s.trouble(c.RemoteAddr().String(), err)
		}
	}
}

// admit starts a peer, if there is room for it.
func (s *bound) admit(c net.Conn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return net.ErrClosed
	case len(s.peers) >= s.bounds.Peers:
		return ErrTooManyPeers
	}
	s.peers[c] = struct{}{}
	s.done.Go(func() { s.attend(c) })
	return nil
}

// attend serves a peer until it leaves, which is no trouble.
func (s *bound) attend(c net.Conn) {
	peer, err := open(c, s.kind, s.bounds, true)
	if err == nil {
		if err = s.serve(peer); gone(err) {
			err = nil
		}
	}
	_ = c.Close() // nothing more is written
	s.mu.Lock()
	delete(s.peers, c)
	closed := s.closed
	s.mu.Unlock()
	if err != nil && !closed {
		s.trouble(c.RemoteAddr().String(), err)
	}
}

// gone tells that a peer has left.
func gone(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
