// Package zmqpeer has the ZeroMQ sockets of engines: PUB, and DEALER or PUSH. The
// simulator and tests use it.
package zmqpeer

import (
	"context"
	"sync"
	"time"

	"github.com/pdmesh/pdmesh/internal/engine/zmq"
)

// handshake is the timeout of a connection's handshake: libzmq has 30 s by default (ZMQ_HANDSHAKE_IVL).
const handshake = 30 * time.Second

// Sender is a connected DEALER or PUSH socket. It connects with the first message, and
// reconnects when the connection was lost; messages in a lost connection are lost, as
// with libzmq. Its methods are safe for concurrent use.
type Sender struct {
	kind     zmq.Kind
	endpoint string

	mu   sync.Mutex
	peer *zmq.Conn
	left chan struct{} // closed when the connection has ended
}

// NewSender returns a Sender of kind Dealer or Push for an endpoint.
func NewSender(kind zmq.Kind, endpoint string) (*Sender, error) {
	if _, err := zmq.ParseEndpoint(endpoint); err != nil {
		return nil, err
	}
	return &Sender{kind: kind, endpoint: endpoint}, nil
}

// Send sends one message. An error means that it was not sent.
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

// Close closes the connection.
func (s *Sender) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop()
}

func (s *Sender) connect(ctx context.Context) error {
	peer, err := zmq.Dial(ctx, s.kind, s.endpoint, zmq.Bounds{Handshake: handshake}, nil)
	if err != nil {
		return err
	}
	left := make(chan struct{})
	s.peer, s.left = peer, left
	go func() { // the peer sends only heartbeats: this notices the end of the connection
		defer close(left)
		for {
			if _, err := peer.Receive(); err != nil {
				return
			}
		}
	}()
	return nil
}

// drop closes the connection and waits for its reader.
func (s *Sender) drop() {
	if s.peer == nil {
		return
	}
	_ = s.peer.Close() // already broken, or unused
	<-s.left
	s.peer, s.left = nil, nil
}
