package zmq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"time"
)

// Kind is the type of a socket.
type Kind string

// The kinds.
const (
	Router Kind = "ROUTER" // bound; peers are DEALERs and REQs
	Pull   Kind = "PULL"   // bound; peers are PUSHes
	Dealer Kind = "DEALER" // connected
	Push   Kind = "PUSH"   // connected
	Sub    Kind = "SUB"    // bound or connected; peers are PUBs
	Pub    Kind = "PUB"    // bound or connected; peers are SUBs
)

// Bounds limit peers. A zero field means the default.
type Bounds struct {
	Bytes  int // of one message; 64 KiB
	Frames int // of one message; 16
	Peers  int // connections at once; 1024
	// Handshake is the timeout of a peer's handshake; 5 s.
	Handshake time.Duration
}

func (b Bounds) filled() Bounds {
	b.Bytes = cmp.Or(b.Bytes, 64<<10)
	b.Frames = cmp.Or(b.Frames, 16)
	b.Peers = cmp.Or(b.Peers, 1024)
	b.Handshake = cmp.Or(b.Handshake, 5*time.Second)
	return b
}

// ErrTooManyPeers means that a connection was refused because Bounds.Peers are open.
var ErrTooManyPeers = errors.New("too many peers")

// Message is one message of a peer.
type Message struct {
	Remote string // ip:port of the peer's connection
	Frames [][]byte

	peer *Conn
}

// Answer sends a message to the peer that sent this one. A REQ peer expects an empty
// frame before the others.
func (m Message) Answer(frames ...[]byte) error { return m.peer.Send(frames...) }

// Listener is a bound socket that receives. It is safe for concurrent use.
type Listener struct {
	*Socket
	messages chan Message
}

// Listen binds a Router or a Pull to an endpoint of the form that ParseEndpoint accepts.
// onError, if not nil, is called with the error of every peer that was refused or violated
// the protocol, but not when a peer disconnects.
func Listen(ctx context.Context, kind Kind, endpoint string, b Bounds, onError func(remote string, err error)) (*Listener, error) {
	if kind != Router && kind != Pull {
		return nil, fmt.Errorf("a %s is not bound to receive", kind)
	}
	messages := make(chan Message)
	s, err := Bind(ctx, kind, endpoint, b, onError, func(closing <-chan struct{}, peer *Conn) error {
		return receive(peer, messages, closing)
	})
	if err != nil {
		return nil, err
	}
	return &Listener{Socket: s, messages: messages}, nil
}

// Receive returns the next message of any peer. The error is ctx's, or net.ErrClosed
// after Close. Peers wait until their messages are received.
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

// receive passes on a peer's messages until it disconnects or the socket is closed.
func receive(peer *Conn, messages chan<- Message, closing <-chan struct{}) error {
	for {
		frames, err := peer.Receive()
		if err != nil {
			return err
		}
		select {
		case messages <- Message{Remote: peer.Remote(), Frames: frames, peer: peer}:
		case <-closing:
			return nil
		}
	}
}
