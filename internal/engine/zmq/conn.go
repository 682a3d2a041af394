package zmq

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// The flags of a frame.
const (
	flagMore = 1 << iota
	flagLong
	flagCommand
)

// sendTimeout bounds each send.
const sendTimeout = time.Second

// readAhead is the size of one read in bytes. A small message needs one system call
// instead of two for each of its frames.
const readAhead = 32 << 10

// bodyStep is the initial allocation in bytes for a frame whose header announces more.
// The buffer grows as bytes arrive.
const bodyStep = 1 << 20

// ErrTooLarge means that a peer announced a message above the bounds.
var ErrTooLarge = errors.New("message is too large")

var errFrame = errors.New("malformed frame")

// Conn is one connection to one peer. One goroutine may receive while others send
// and close.
type Conn struct {
	conn   net.Conn
	read   *bufio.Reader
	bounds Bounds

	pinged  atomic.Bool // a PONG is awaited
	partial [][]byte    // frames of a message that a command interrupted; used by Receive only

	mu  sync.Mutex // guards out; held while it is written
	out []byte
}

// DialFunc connects like net.Dialer.DialContext.
type DialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// Dial connects a socket to an endpoint of the form that ParseEndpoint accepts. Bounds.Handshake limits the
// time until the handshake is complete. A nil dial is a net.Dialer whose keep-alive detects a dead peer
// within half a minute.
func Dial(ctx context.Context, kind Kind, endpoint string, b Bounds, dial DialFunc) (*Conn, error) {
	address, err := ParseEndpoint(endpoint)
	if err != nil {
		return nil, err
	}
	if kind == Router || kind == Pull {
		return nil, fmt.Errorf("a %s does not connect", kind)
	}
	b = b.filled()
	if dial == nil {
		dialer := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}}
		dial = dialer.DialContext
	}
	within, cancel := context.WithTimeout(ctx, b.Handshake)
	defer cancel()
	c, err := dial(within, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })() // the handshake then returns an error
	peer, err := open(c, kind, b)
	if err != nil {
		_ = c.Close() // err is returned
		return nil, err
	}
	return peer, nil
}

// open performs the handshake. If it fails, the caller must close the connection.
func open(nc net.Conn, kind Kind, b Bounds) (*Conn, error) {
	if err := nc.SetDeadline(time.Now().Add(b.Handshake)); err != nil {
		return nil, fmt.Errorf("deadline: %w", err)
	}
	c := &Conn{conn: nc, read: bufio.NewReaderSize(nc, readAhead), bounds: b}
	if err := c.handshake(kind); err != nil {
		return nil, fmt.Errorf("handshake: %w", err)
	}
	if err := nc.SetDeadline(time.Time{}); err != nil {
		return nil, fmt.Errorf("deadline: %w", err)
	}
	return c, nil
}

// Subscribe asks a PUB for the messages whose first frame begins with the topic.
func (c *Conn) Subscribe(topic string) error { return c.Send(append([]byte{1}, topic...)) }

// Ping asks the peer for a PONG (ZMTP 3.1, section "Heartbeating"), for which Receive
// returns no frames. The peer reads commands in order: when the PONG arrives, it knows all
// subscriptions sent before the PING. libzmq answers since 4.2.
func (c *Conn) Ping() error {
	c.pinged.Store(true)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out = appendFrame(c.out[:0], flagCommand, []byte("\x04PING\x00\x00")) // a TTL of 0: none
	return c.write()
}

// Remote returns ip:port of the peer.
func (c *Conn) Remote() string { return c.conn.RemoteAddr().String() }

// Close closes the connection; a pending Receive returns net.ErrClosed.
func (c *Conn) Close() error {
	if err := c.conn.Close(); err != nil {
		return fmt.Errorf("close: %w", err)
	}
	return nil
}

// Send sends one message. If it fails, or the peer does not accept the message within a
// second, the connection is unusable.
func (c *Conn) Send(frames ...[]byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out = c.out[:0]
	for i, f := range frames {
		var flags byte
		if i < len(frames)-1 {
			flags = flagMore
		}
		c.out = appendFrame(c.out, flags, f)
	}
	return c.write()
}

// write sends the contents of out. The caller holds mu.
func (c *Conn) write() error {
	if err := c.conn.SetWriteDeadline(time.Now().Add(sendTimeout)); err != nil {
		return fmt.Errorf("deadline: %w", err)
	}
	if _, err := c.conn.Write(c.out); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	if cap(c.out) > bodyStep {
		c.out = nil
	}
	return nil
}

func appendFrame(to []byte, flags byte, body []byte) []byte {
	if len(body) > 255 {
		to = append(to, flags|flagLong)
		to = binary.BigEndian.AppendUint64(to, uint64(len(body)))
	} else {
		to = append(to, flags, byte(len(body)))
	}
	return append(to, body...)
}

// Receive returns the next message, or no frames for the answer to a Ping. It answers the
// peer's heartbeats. Any error ends the connection's use: io.EOF when the peer has left (or
// another error if a heartbeat could not be answered), net.ErrClosed after Close,
// ErrTooLarge for a message above the bounds.
func (c *Conn) Receive() ([][]byte, error) {
	frames, left := c.partial, c.bounds.Bytes
	c.partial = nil
	for _, f := range frames {
		left -= len(f)
	}
	for {
		flags, body, err := c.frame(left)
		switch {
		case err != nil:
			return nil, err
		case flags&flagCommand != 0:
			command, answered, err := c.command(flags, body)
			if command != nil || answered || err != nil {
				c.partial = frames // libzmq may send a PONG between two frames
				return command, err
			}
			continue
		}
		if frames = append(frames, body); len(frames) > c.bounds.Frames {
			return nil, ErrTooLarge
		}
		left -= len(body)
		if flags&flagMore == 0 {
			return frames, nil
		}
	}
}

// frame reads one frame of at most limit bytes.
func (c *Conn) frame(limit int) (flags byte, body []byte, err error) {
	var header [9]byte
	if _, err := io.ReadFull(c.read, header[:2]); err != nil {
		return 0, nil, receiveError(err)
	}
	size := uint64(header[1])
	if header[0]&flagLong != 0 {
		if _, err := io.ReadFull(c.read, header[2:]); err != nil {
			return 0, nil, receiveError(err)
		}
		size = binary.BigEndian.Uint64(header[1:])
	}
	if size > uint64(limit) { //nolint:gosec // limit is what is left of the bounds, never negative
		return 0, nil, ErrTooLarge
	}
	n := int(size) //nolint:gosec // not above limit
	body = make([]byte, min(n, bodyStep))
	for have := 0; ; {
		if _, err := io.ReadFull(c.read, body[have:]); err != nil {
			return 0, nil, receiveError(err)
		}
		if have = len(body); have == n {
			return header[0], body, nil
		}
		body = append(body, make([]byte, min(have, n-have))...)
	}
}

func receiveError(err error) error { return fmt.Errorf("receive: %w", err) }

// command answers a PING with the context that it carries, and returns a subscription in
// the form in which peers of ZMTP 3.0 send it. answered reports the PONG to a Ping. Other
// commands are ignored.
func (c *Conn) command(flags byte, body []byte) (subscription [][]byte, answered bool, err error) {
	name, rest, err := splitCommand(flags, body)
	if err != nil {
		return nil, false, err
	}
	switch name {
	case "PING":
		if len(rest) < 2 { // the TTL
			return nil, false, fmt.Errorf("%w: PING", errFrame)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.out = appendFrame(c.out[:0], flagCommand, append([]byte("\x04PONG"), rest[2:]...))
		return nil, false, c.write()
	case "PONG":
		return nil, c.pinged.Swap(false), nil
	case "SUBSCRIBE":
		return [][]byte{append([]byte{1}, rest...)}, false, nil
	case "CANCEL":
		return [][]byte{append([]byte{0}, rest...)}, false, nil
	}
	return nil, false, nil
}

// splitCommand returns the name of a command, and the data after it.
func splitCommand(flags byte, body []byte) (name string, rest []byte, err error) {
	if flags&flagMore != 0 || len(body) == 0 || int(body[0]) > len(body)-1 {
		return "", nil, fmt.Errorf("%w: a command", errFrame)
	}
	return string(body[1 : 1+body[0]]), body[1+body[0]:], nil
}
