package floor

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/pdmesh/pdmesh/bench/answer"
	"github.com/pdmesh/pdmesh/bench/wire"
)

// client is a connection of the generator.
type client struct {
	f  *Floor
	fd int

	// The request is in buf[room:w], its body in buf[body:end]; body is 0 until
	// the head is complete. The legs' heads are written in front of the body.
	buf          []byte
	w, body, end int
	tail         []byte // the body's end, where the first leg's own was put

	leg     *leg   // where the request is under way
	pending []byte // of the answer, until the client takes it
}

const (
	// room is for a leg's head and a hand-over, less what the client's head takes.
	room = 1 << 10
	// spare lets a read find less than it asked for, which reports whether it was all.
	spare = 1 << 10
	// firstBuffer holds a small request.
	firstBuffer = room + 4<<10
)

// oneToken ends the body of a first leg.
const oneToken = answer.MaxTokens + "1}"

// well is what whatever starts us asks for.
const well = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"

func newClient(f *Floor, fd int) *client {
	return &client{f: f, fd: fd, buf: make([]byte, firstBuffer), w: room}
}

func (c *client) ready(events uint32) error {
	if events&unix.EPOLLOUT != 0 && len(c.pending) > 0 {
		if err := c.flush(); err != nil || c.fd < 0 {
			return err
		}
	}
	if events&^unix.EPOLLOUT == 0 {
		return nil
	}
	ended := events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0
	for {
		if c.w == len(c.buf) {
			c.grow(2 * len(c.buf))
		}
		n := read(c.fd, c.buf[c.w:])
		if n == again {
			return nil
		}
		if n <= 0 {
			c.leave()
			return nil
		}
		if c.leg != nil || len(c.pending) > 0 {
			return fmt.Errorf("%w: a client that sends before it has its answer", ErrSurprise)
		}
		c.w += n
		more := c.w == len(c.buf)
		if err := c.came(); err != nil {
			return err
		}
		if c.fd < 0 || !more && !ended {
			return nil
		}
	}
}

func (c *client) grow(size int) { c.buf = slices.Grow(c.buf, size-len(c.buf))[:size] }

// came looks whether the request is complete, and begins with it.
func (c *client) came() error {
	if c.body == 0 {
		i := bytes.Index(c.buf[room:c.w], []byte(wire.EndOfHead))
		if i < 0 {
			return nil
		}
		h, err := wire.ParseHead(c.buf[room : room+i+2])
		if err != nil {
			return fmt.Errorf("%w: %w", ErrSurprise, err)
		}
		if bytes.HasPrefix(h.Line, []byte("GET ")) {
			c.w = room
			return c.answer([]byte(well), true)
		}
		if h.Length < 2 || h.Continue {
			return fmt.Errorf("%w: a request without a length, or that waits: %q", ErrSurprise, h.Line)
		}
		c.body = room + i + len(wire.EndOfHead)
		c.end = c.body + int(h.Length)
		if c.end+spare > len(c.buf) {
			c.grow(c.end + spare)
		}
	}
	switch {
	case c.w < c.end:
		return nil
	case c.w > c.end:
		return fmt.Errorf("%w: a client that sends before it has its answer", ErrSurprise)
	}
	return c.first()
}

// first sends the prefill's leg.
func (c *client) first() error {
	cut := bytes.LastIndex(c.buf[c.body:c.end], []byte(answer.MaxTokens))
	if cut < 0 {
		return fmt.Errorf("%w: a body without %s", ErrSurprise, answer.MaxTokens)
	}
	tail := c.buf[c.body+cut : c.end]
	c.tail = append(c.tail[:0], tail...)
	return c.send(&c.f.prefill, c.f.ask, c.body+cut+copy(tail, oneToken))
}

// second sends the decode's leg with the hand-over.
func (c *client) second(kv []byte) error {
	copy(c.buf[c.end-len(c.tail):], c.tail)
	f := c.f
	f.front = append(append(append(f.front[:0], "{"+answer.Handover...), kv...), ',')
	return c.send(&f.decode, f.front, c.end)
}

// send puts a head and front, which opens the body in place of its brace, before
// what the body goes on with up to end, and writes all of it at once.
func (c *client) send(to *pool, front []byte, end int) error {
	l, err := to.take(c.f)
	if err != nil {
		return err
	}
	var digits [20]byte
	start := c.body + 1
	length := strconv.AppendInt(digits[:0], int64(len(front)+end-start), 10)
	for _, part := range [][]byte{front, []byte(wire.EndOfHead), length, l.at.head} {
		start -= len(part)
		if start < 0 {
			return fmt.Errorf("%w: a hand-over of %d bytes", ErrSurprise, len(front))
		}
		copy(c.buf[start:], part)
	}
	c.leg, l.c = l, c
	return l.write(c.buf[start:end])
}

// answer passes on what came; last says that the answer ends with it.
func (c *client) answer(p []byte, last bool) error {
	n := write(c.fd, p)
	if n == again {
		n = 0
	}
	if n < 0 {
		c.leave()
		return nil
	}
	if last {
		c.w, c.body = room, 0
	}
	c.pending = append(c.pending[:0], p[n:]...)
	return nil
}

// flush goes on with what the client did not take, and then with the leg that
// has waited for it.
func (c *client) flush() error {
	n := write(c.fd, c.pending)
	if n == again {
		return nil
	}
	if n < 0 {
		c.leave()
		return nil
	}
	c.pending = c.pending[:copy(c.pending, c.pending[n:])]
	if len(c.pending) == 0 && c.leg != nil {
		return c.leg.read()
	}
	return nil
}

// leave closes it, and the leg that works for it.
func (c *client) leave() {
	c.f.drop(c.fd)
	c.fd = -1
	if c.leg != nil {
		c.leg.leave()
	}
}
