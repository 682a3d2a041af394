package zmq

import (
	"bytes"
	"context"
	"net"
	"sync"
	"time"
)

// maxTopics is how many topics one peer may subscribe to.
const maxTopics = 256

// Publisher is a PUB, for the simulator and for tests. Like libzmq's it never waits
// for anybody: what a subscriber does not take is lost to it once its queue is full.
type Publisher struct {
	socket bound // of one that is bound
	queue  int   // messages that may wait for one subscriber

	stop      context.CancelFunc // of one that connects
	connected sync.WaitGroup

	mu   sync.Mutex
	subs map[*subscriber]struct{}
}

// publisherBounds are what a SUB may send: its topics, one by one.
func publisherBounds() Bounds { return Bounds{Bytes: 4 << 10, Frames: 1} }

// Publish binds a Publisher to an endpoint. queue is how many messages may wait for
// one subscriber.
func Publish(ctx context.Context, endpoint string, queue int, trouble func(remote string, err error)) (*Publisher, error) {
	p := &Publisher{queue: queue, subs: make(map[*subscriber]struct{})}
	if err := p.socket.bind(ctx, Pub, endpoint, publisherBounds(), trouble, p.attend); err != nil {
		return nil, err
	}
	return p, nil
}

// PublishTo makes a Publisher that connects to a SUB which is bound, and anew when the
// connection has ended, until Close.
func PublishTo(endpoint string, queue int) (*Publisher, error) {
	if _, err := ParseEndpoint(endpoint); err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	p := &Publisher{queue: queue, stop: stop, subs: make(map[*subscriber]struct{})}
	p.connected.Go(func() {
		for ctx.Err() == nil {
			if peer, err := Dial(ctx, Pub, endpoint, publisherBounds(), nil); err == nil {
				end := context.AfterFunc(ctx, func() { _ = peer.Close() }) // it is given up
				_ = p.attend(peer)                                         // another follows
				end()
			}
			again := time.NewTimer(connectPause)
			select {
			case <-ctx.Done():
			case <-again.C:
			}
			again.Stop()
		}
	})
	return p, nil
}

// Addr is where a bound Publisher is.
func (p *Publisher) Addr() net.Addr { return p.socket.Addr() }

// Close ends the Publisher. It returns when nothing of it runs any more.
func (p *Publisher) Close() error {
	if p.stop == nil {
		return p.socket.Close()
	}
	p.stop()
	p.connected.Wait()
	return nil
}

// Subscribers is how many peers have subscribed to something.
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

// Send publishes a message, whose first frame begins with its topic. The frames must
// not be changed any more.
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

// change takes a subscription or its end.
func (s *subscriber) change(message []byte) error {
	if len(message) == 0 || message[0] > 1 {
		return errFrame
	}
	topic := string(message[1:])
	s.mu.Lock()
	defer s.mu.Unlock()
	if message[0] == 1 {
		if s.topics[topic]++; len(s.topics) > maxTopics {
			return ErrTooLarge
		}
	} else if s.topics[topic]--; s.topics[topic] <= 0 {
		delete(s.topics, topic)
	}
	return nil
}

// attend takes a peer's subscriptions until it leaves, while another
// goroutine sends it what it wants.
func (p *Publisher) attend(peer *Conn) error {
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
		_ = peer.Close() // a send may hang in it
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

// connectPause is between two tries to reach a SUB that is bound.
const connectPause = 100 * time.Millisecond
