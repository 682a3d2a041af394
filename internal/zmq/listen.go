package zmq

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/go-zeromq/zmq4"
)

// Kind is what a socket is.
type Kind string

// The kinds.
const (
	Router Kind = "ROUTER" // bound; peers are DEALERs
	Pull   Kind = "PULL"   // bound; peers are PUSHes
	Dealer Kind = "DEALER" // connected
	Push   Kind = "PUSH"   // connected
)

// Bounds are what peers may do. A zero field means the default.
type Bounds struct {
	Bytes  int // of one message; 64 KiB
	Frames int // of one message; 16
	Peers  int // connections at once; 1024
	// Handshake is how long a peer may take to say who it is; 5 s.
	Handshake time.Duration
}

func (b Bounds) filled() Bounds {
	if b.Bytes == 0 {
		b.Bytes = 64 << 10
	}
	if b.Frames == 0 {
		b.Frames = 16
	}
	if b.Peers == 0 {
		b.Peers = 1024
	}
	if b.Handshake == 0 {
		b.Handshake = 5 * time.Second
	}
	return b
}

// ErrTooManyPeers: a connection was refused, Bounds.Peers of them stand.
var ErrTooManyPeers = errors.New("too many peers")

// errPanic: the library failed over a peer's bytes.
var errPanic = errors.New("malformed")

// Message is one message of a peer.
type Message struct {
	// Identity is what a DEALER calls itself, often nothing. Anybody may take
	// any.
	Identity []byte
	Remote   string // ip:port of the peer's connection
	Frames   [][]byte
}

// Listener is a bound socket. Its methods may be called at once.
type Listener struct {
	kind    Kind
	bounds  Bounds
	trouble func(remote string, err error)

	listener net.Listener
	messages chan Message
	closing  chan struct{}
	done     sync.WaitGroup

	mu     sync.Mutex
	peers  map[net.Conn]struct{}
	closed bool
}

// Listen binds a Router or a Pull to an endpoint of the form that ParseEndpoint
// takes. trouble, if it is not nil, hears of every peer that was refused or broke
// the protocol; a peer that merely leaves is none.
func Listen(ctx context.Context, kind Kind, endpoint string, b Bounds, trouble func(remote string, err error)) (*Listener, error) {
	address, err := ParseEndpoint(endpoint)
	if err != nil {
		return nil, err
	}
	if kind != Router && kind != Pull {
		return nil, fmt.Errorf("a %s is not bound", kind)
	}
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", endpoint, err)
	}
	if trouble == nil {
		trouble = func(string, error) {}
	}
	s := &Listener{
		kind: kind, bounds: b.filled(), trouble: trouble, listener: l,
		messages: make(chan Message), closing: make(chan struct{}), peers: make(map[net.Conn]struct{}),
	}
	s.done.Go(s.accept)
	return s, nil
}

// Addr is where the socket is bound.
func (s *Listener) Addr() net.Addr { return s.listener.Addr() }

// Receive gives the next message of any peer. The error is ctx's, or net.ErrClosed
// after Close. Peers whose messages nobody receives wait.
func (s *Listener) Receive(ctx context.Context) (Message, error) {
	select {
	case m := <-s.messages:
		return m, nil
	case <-s.closing:
		return Message{}, net.ErrClosed
	case <-ctx.Done():
		return Message{}, context.Cause(ctx)
	}
}

// Close ends the socket and all its peers' connections. It returns when nothing of
// them runs any more.
func (s *Listener) Close() error {
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

func (s *Listener) accept() {
	for {
		c, err := s.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			s.trouble("", err)
			select {
			case <-s.closing:
				return
			case <-time.After(acceptPause):
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
func (s *Listener) admit(c net.Conn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return net.ErrClosed
	case len(s.peers) >= s.bounds.Peers:
		return ErrTooManyPeers
	}
	s.peers[c] = struct{}{}
	s.done.Go(func() { s.serve(c) })
	return nil
}

func (s *Listener) serve(c net.Conn) {
	err := s.read(c)
	_ = c.Close() // nothing is written
	s.mu.Lock()
	delete(s.peers, c)
	closed := s.closed
	s.mu.Unlock()
	if err != nil && !closed {
		s.trouble(c.RemoteAddr().String(), err)
	}
}

// read passes on a peer's messages until it leaves, which is no error.
func (s *Listener) read(c net.Conn) (err error) {
	defer func() { // the library indexes what a peer sent without looking at its length
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", errPanic, p)
		}
	}()
	if err := c.SetDeadline(time.Now().Add(s.bounds.Handshake)); err != nil {
		return fmt.Errorf("deadline: %w", err)
	}
	peer, err := open(c, s.kind, s.bounds, true)
	if err != nil {
		return err
	}
	if err := c.SetDeadline(time.Time{}); err != nil {
		return fmt.Errorf("deadline: %w", err)
	}
	identity := []byte(peer.Peer.Meta["Identity"])
	for {
		m, err := peer.RecvMsg()
		switch {
		case err != nil && gone(err):
			return nil
		case err != nil:
			return fmt.Errorf("receive: %w", err)
		case m.Type == zmq4.CmdMsg: // a heartbeat, which the library answers
			continue
		}
		select {
		case s.messages <- Message{Identity: identity, Remote: c.RemoteAddr().String(), Frames: m.Frames}:
		case <-s.closing:
			return nil
		}
	}
}
