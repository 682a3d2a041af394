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

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/security/null"
)

// open shakes hands over a connection.
func open(c net.Conn, kind Kind, b Bounds, server bool) (*zmq4.Conn, error) {
	peer, err := zmq4.Open(newGuard(c, b), null.Security(), zmq4.SocketType(kind), nil, server, nil)
	if err != nil {
		return nil, fmt.Errorf("handshake: %w", err)
	}
	return peer, nil
}

// gone tells that a peer has left.
func gone(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.ECONNRESET)
}

// sendTimeout bounds connecting and sending, each.
const sendTimeout = time.Second

// Sender is a connected Dealer or Push for the simulator and for tests. It connects
// when it first sends, and anew when the connection has ended; what a connection that
// ended still held is lost, as with libzmq. Its methods may be called at once.
type Sender struct {
	kind    Kind
	address string

	mu   sync.Mutex
	conn net.Conn
	peer *zmq4.Conn
	left chan struct{} // closed when the connection has ended
}

// NewSender makes a Dealer or a Push for an endpoint.
func NewSender(kind Kind, endpoint string) (*Sender, error) {
	address, err := ParseEndpoint(endpoint)
	if err != nil {
		return nil, err
	}
	if kind != Dealer && kind != Push {
		return nil, fmt.Errorf("a %s does not connect", kind)
	}
	return &Sender{kind: kind, address: address}, nil
}

// Send sends one message. The error tells that nobody took it.
func (s *Sender) Send(ctx context.Context, frames ...[]byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.peer != nil {
		select {
		case <-s.left:
			s.drop()
		default:
		}
	}
	if s.peer == nil {
		if err := s.connect(ctx); err != nil {
			return err
		}
	}
	if err := s.conn.SetWriteDeadline(time.Now().Add(sendTimeout)); err != nil {
		s.drop()
		return fmt.Errorf("deadline: %w", err)
	}
	if err := s.peer.SendMsg(zmq4.NewMsgFrom(frames...)); err != nil {
		s.drop()
		return fmt.Errorf("send: %w", err)
	}
	return nil
}

// Close ends the connection.
func (s *Sender) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop()
}

func (s *Sender) connect(ctx context.Context) error {
	dialer := net.Dialer{Timeout: sendTimeout}
	c, err := dialer.DialContext(ctx, "tcp", s.address)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	if err := c.SetDeadline(time.Now().Add(sendTimeout)); err != nil {
		_ = c.Close() // the error is told
		return fmt.Errorf("deadline: %w", err)
	}
	peer, err := open(c, s.kind, Bounds{}.filled(), false)
	if err != nil {
		_ = c.Close() // the error is told
		return err
	}
	if err := c.SetDeadline(time.Time{}); err != nil {
		_ = c.Close() // the error is told
		return fmt.Errorf("deadline: %w", err)
	}
	left := make(chan struct{})
	s.conn, s.peer, s.left = c, peer, left
	go func() { // a bound socket of these kinds sends heartbeats at most, so that this sees the end
		defer close(left)
		for {
			if _, err := peer.RecvMsg(); err != nil {
				return
			}
		}
	}()
	return nil
}

// drop ends the connection and waits for its reader.
func (s *Sender) drop() {
	if s.peer == nil {
		return
	}
	_ = s.conn.Close() // it is given up
	<-s.left
	s.conn, s.peer, s.left = nil, nil, nil
}
