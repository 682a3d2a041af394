package zmq

import (
	"context"
	"fmt"
	"sync"
)

// Sender is a connected Dealer or Push for the simulator and for tests. It connects
// when it first sends, and anew when the connection has ended; what a connection that
// ended still held is lost, as with libzmq. Its methods may be called at once.
type Sender struct {
	kind     Kind
	endpoint string

	mu   sync.Mutex
	peer *Conn
	left chan struct{} // closed when the connection has ended
}

// NewSender makes a Dealer or a Push for an endpoint.
func NewSender(kind Kind, endpoint string) (*Sender, error) {
	if _, err := ParseEndpoint(endpoint); err != nil {
		return nil, err
	}
	if kind != Dealer && kind != Push {
		return nil, fmt.Errorf("a %s does not only send", kind)
	}
	return &Sender{kind: kind, endpoint: endpoint}, nil
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
	if err := s.peer.Send(frames...); err != nil {
		s.drop()
		return err
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
	peer, err := Dial(ctx, s.kind, s.endpoint, Bounds{Handshake: sendTimeout}, nil)
	if err != nil {
		return err
	}
	left := make(chan struct{})
	s.peer, s.left = peer, left
	go func() { // a bound socket of these kinds sends heartbeats at most, so that this sees the end
		defer close(left)
		for {
			if _, err := peer.Receive(); err != nil {
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
	_ = s.peer.Close() // it is given up
	<-s.left
	s.peer, s.left = nil, nil
}
