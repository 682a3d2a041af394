package floor

import (
	"bytes"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/pdmesh/pdmesh/bench/answer"
	"github.com/pdmesh/pdmesh/bench/wire"
)

// pool is the instances of one role.
type pool struct {
	instances []instance
	next      int
}

type instance struct {
	addr    string
	to      *unix.SockaddrInet4
	prefill bool
	head    []byte // of a request, up to the value of Content-Length
	idle    []*leg // the last used is the last
}

func newPool(addrs []string, prefill bool) (p pool, err error) {
	if len(addrs) == 0 {
		return p, fmt.Errorf("%w: it needs instances for both legs", ErrOptions)
	}
	p.instances = make([]instance, len(addrs))
	for i, addr := range addrs {
		in := &p.instances[i]
		in.addr, in.prefill = addr, prefill
		in.head = []byte("POST " + answer.Path + " HTTP/1.1\r\nHost: " + addr + "\r\nContent-Type: application/json\r\nContent-Length: ")
		if in.to, err = sockaddr(addr); err != nil {
			return p, err
		}
	}
	return p, nil
}

// take returns a connection to the instance whose turn it is.
func (p *pool) take(f *Floor) (*leg, error) {
	in := &p.instances[p.next]
	if p.next++; p.next == len(p.instances) {
		p.next = 0
	}
	if n := len(in.idle); n > 0 {
		l := in.idle[n-1]
		in.idle = in.idle[:n-1]
		return l, nil
	}
	fd, err := connect(in.to)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrSurprise, in.addr, err)
	}
	l := &leg{f: f, at: in, fd: fd}
	f.add(fd, l)
	return l, watch(f.poll, fd, anything)
}

// leg is a connection to an instance.
type leg struct {
	f  *Floor
	at *instance
	fd int
	c  *client // whose request it works on, nil while it is idle

	out  []byte // of the request, in the client's buffer, until the instance takes it
	held []byte // a first leg's answer, or a second one's head, while it is incomplete

	// Of a second leg's answer whose head has been passed on:
	open    bool
	chunked bool
	left    int64 // bytes, unless in chunks
	end     [len(endOfChunks)]byte
}

// endOfChunks is the end of the last event's chunk and what follows it; no chunk
// of ours has such bytes within.
const endOfChunks = "\n0\r\n\r\n"

func (l *leg) ready(events uint32) error {
	if events&unix.EPOLLOUT != 0 && len(l.out) > 0 {
		if err := l.write(l.out); err != nil {
			return err
		}
	}
	if events&^unix.EPOLLOUT == 0 {
		return nil
	}
	return l.read()
}

// write sends a request, now as far as it goes and the rest when there is room.
func (l *leg) write(p []byte) error {
	n := write(l.fd, p)
	if n == again {
		n = 0
	}
	if n < 0 {
		return fmt.Errorf("%w: write to %s: %w", ErrSurprise, l.at.addr, reason(n))
	}
	l.out = p[n:]
	return nil
}

// read reads until nothing is left, or the client does not take it.
func (l *leg) read() error {
	for l.c == nil || len(l.c.pending) == 0 {
		n := read(l.fd, l.f.scratch)
		switch {
		case n == again:
			return nil
		case n < 0:
			return fmt.Errorf("%w: read from %s: %w", ErrSurprise, l.at.addr, reason(n))
		case n == 0:
			return fmt.Errorf("%w: %s closes a connection", ErrSurprise, l.at.addr)
		case l.c == nil:
			return fmt.Errorf("%w: %s says what nobody asked for: %.80q", ErrSurprise, l.at.addr, l.f.scratch[:n])
		}
		var err error
		if l.at.prefill {
			err = l.handOver(l.f.scratch[:n])
		} else {
			err = l.pass(l.f.scratch[:n])
		}
		if err != nil {
			return err
		}
		if n < len(l.f.scratch) || l.fd < 0 {
			return nil
		}
	}
	return nil
}

// handOver takes a piece of a first leg's answer; the second leg begins with
// its end.
func (l *leg) handOver(p []byte) error {
	p, h, body, err := l.head(p)
	if err != nil || p == nil {
		return err
	}
	if have := int64(len(p) - body); have < h.Length {
		l.held = append(l.held[:0], p...)
		return nil
	} else if have > h.Length {
		return fmt.Errorf("%w: %s says more than it said it would", ErrSurprise, l.at.addr)
	}
	kv := answer.KV(p[body:])
	if kv == nil {
		return fmt.Errorf("%w: %s gives no hand-over: %.300q", ErrSurprise, l.at.addr, p[body:])
	}
	c := l.c
	l.done()
	return c.second(kv)
}

// pass takes a piece of a second leg's answer to the client.
func (l *leg) pass(p []byte) error {
	payload := p
	if !l.open {
		all, h, body, err := l.head(p)
		if err != nil || all == nil {
			return err
		}
		p, payload = all, all[body:]
		l.open, l.chunked, l.left, l.end = true, h.Chunked, h.Length, [len(endOfChunks)]byte{}
	}
	c := l.c
	last, err := l.ends(payload)
	if err != nil {
		return err
	}
	if last {
		l.done()
	}
	return c.answer(p, last)
}

// head looks for the end of an answer's head in what was held and p, which are
// given back together; nil while there is none.
func (l *leg) head(p []byte) (all []byte, h wire.Head, body int, err error) {
	if len(l.held) > 0 {
		l.held = append(l.held, p...)
		p = l.held
	}
	i := bytes.Index(p, []byte(wire.EndOfHead))
	if i < 0 {
		l.held = append(l.held[:0], p...)
		return nil, h, 0, nil
	}
	h, err = wire.ParseHead(p[:i+2])
	if err != nil {
		return nil, h, 0, fmt.Errorf("%w: %s: %w", ErrSurprise, l.at.addr, err)
	}
	if h.Status != 200 || h.Close || h.Length < 0 && !h.Chunked {
		return nil, h, 0, fmt.Errorf("%w: %s answers %.300q", ErrSurprise, l.at.addr, p)
	}
	return p, h, i + len(wire.EndOfHead), nil
}

// ends reports whether the answer ends with p.
func (l *leg) ends(p []byte) (bool, error) {
	if l.chunked {
		n := copy(l.end[:], l.end[min(len(p), len(l.end)):])
		copy(l.end[n:], p[len(p)-(len(l.end)-n):])
		return string(l.end[:]) == endOfChunks, nil
	}
	l.left -= int64(len(p))
	if l.left < 0 {
		return false, fmt.Errorf("%w: %s says more than it said it would", ErrSurprise, l.at.addr)
	}
	return l.left == 0, nil
}

// done makes it idle. What it holds is valid until its next answer.
func (l *leg) done() {
	l.held, l.open = l.held[:0], false
	l.c.leg, l.c = nil, nil
	l.at.idle = append(l.at.idle, l)
}

// leave closes it.
func (l *leg) leave() {
	l.f.drop(l.fd)
	l.fd, l.c = -1, nil
}
