// Package zmqpeer has the ZeroMQ sockets of engines: PUB, and DEALER or PUSH. The
// simulator and tests use it.
package zmqpeer

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/pdmesh/pdmesh/internal/cli/sleep"
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

var errSubscription = errors.New("invalid subscription")

// maxTopics is the maximum number of topics of one peer.
const maxTopics = 256

// Publisher is a PUB socket. Like libzmq's it never blocks: it drops the messages for a
// subscriber whose queue is full.
type Publisher struct {
	socket *zmq.Socket // nil if it connects
	queue  int         // messages that may wait for one subscriber

	stop      context.CancelFunc // nil if it is bound
	connected sync.WaitGroup

	mu   sync.Mutex
	subs map[*subscriber]struct{}
}

// publisherBounds returns the limits of a SUB's messages, each of which names one topic.
func publisherBounds() zmq.Bounds { return zmq.Bounds{Bytes: 4 << 10, Frames: 1} }

// Publish binds a Publisher to an endpoint. queue is the number of messages that may wait
// for one subscriber.
func Publish(ctx context.Context, endpoint string, queue int, trouble func(remote string, err error)) (*Publisher, error) {
	p := &Publisher{queue: queue, subs: make(map[*subscriber]struct{})}
	var err error
	if p.socket, err = zmq.Bind(ctx, zmq.Pub, endpoint, publisherBounds(), trouble, func(_ <-chan struct{}, peer *zmq.Conn) error { return p.attend(peer) }); err != nil {
		return nil, err
	}
	return p, nil
}

// PublishTo returns a Publisher that connects to a bound SUB, and reconnects until Close.
func PublishTo(endpoint string, queue int) (*Publisher, error) {
	if _, err := zmq.ParseEndpoint(endpoint); err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	p := &Publisher{queue: queue, stop: stop, subs: make(map[*subscriber]struct{})}
	p.connected.Go(func() {
		for ctx.Err() == nil {
			if peer, err := zmq.Dial(ctx, zmq.Pub, endpoint, publisherBounds(), nil); err == nil {
				end := context.AfterFunc(ctx, func() { _ = peer.Close() }) // the Publisher is closed
				_ = p.attend(peer)                                         // reconnect
				end()
			}
			sleep.For(ctx, 100*time.Millisecond)
		}
	})
	return p, nil
}

// Addr returns the address of a bound Publisher.
func (p *Publisher) Addr() net.Addr { return p.socket.Addr() }

// Close closes the Publisher and waits for its goroutines.
func (p *Publisher) Close() error {
	if p.stop == nil {
		return p.socket.Close()
	}
	p.stop()
	p.connected.Wait()
	return nil
}

// Subscribers returns the number of peers with a subscription.
func (p *Publisher) Subscribers() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for s := range p.subs {
		if s.subscribed() {
			n++
		}
	}
	return n
}

// Send publishes a message, whose first frame begins with its topic. The caller must not
// change the frames afterwards.
func (p *Publisher) Send(frames ...[]byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := range p.subs {
		if s.wants(frames[0]) {
			select {
			case s.queue <- frames:
			default: // it reads too slowly
			}
		}
	}
}

// subscriber is one peer.
type subscriber struct {
	queue chan [][]byte

	mu     sync.Mutex
	topics map[string]int
}

func (s *subscriber) wants(topic []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for t := range s.topics {
		if bytes.HasPrefix(topic, []byte(t)) {
			return true
		}
	}
	return false
}

func (s *subscriber) subscribed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.topics) > 0
}

// change adds or removes a subscription.
func (s *subscriber) change(message []byte) error {
	if len(message) == 0 || message[0] > 1 {
		return errSubscription
	}
	topic := string(message[1:])
	s.mu.Lock()
	defer s.mu.Unlock()
	if message[0] == 1 {
		if s.topics[topic]++; len(s.topics) > maxTopics {
			return zmq.ErrTooLarge
		}
	} else if s.topics[topic]--; s.topics[topic] <= 0 {
		delete(s.topics, topic)
	}
	return nil
}

// attend reads a peer's subscriptions until it disconnects, while another goroutine sends
// it the messages of its topics.
func (p *Publisher) attend(peer *zmq.Conn) error {
	s := &subscriber{queue: make(chan [][]byte, p.queue), topics: make(map[string]int)}
	p.mu.Lock()
	p.subs[s] = struct{}{}
	p.mu.Unlock()
	left := make(chan struct{})
	var sending sync.WaitGroup
	sending.Go(func() {
		for {
			select {
			case <-left:
				return
			case m := <-s.queue:
				if peer.Send(m...) != nil {
					_ = peer.Close() // the reader below ends with it
					return
				}
			}
		}
	})
	defer func() {
		p.mu.Lock()
		delete(p.subs, s)
		p.mu.Unlock()
		close(left)
		_ = peer.Close() // unblocks a pending send
		sending.Wait()
	}()
	for {
		m, err := peer.Receive()
		if err != nil {
			return err
		}
		if err := s.change(m[0]); err != nil {
			return err
		}
	}
}
