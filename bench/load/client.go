package load

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/pdmesh/pdmesh/bench/answer"
	"github.com/pdmesh/pdmesh/bench/wire"
)

// readBuffer is the size of a connection's buffer: a token is 200 bytes.
const readBuffer = 4 << 10

// leg is one connection to one address, with the request that it sends and
// the check of its answer. It belongs to one worker.
type leg struct {
	g    *Generator
	addr string
	used time.Duration // when the last answer had been read

	mu sync.Mutex // guards changes of nc; its worker reads it without
	nc *wire.Conn

	r    *wire.Reader
	head []byte // up to the value of Content-Length
	req  *answer.Request
	out  []byte // head and body of the request as it goes out
	want checker
	fed  bool // a byte of the answer came
}

// checker is an answer.StreamCheck, an answer.WholeCheck or a textCheck.
type checker interface {
	Begin(tag uint64)
	Write(p []byte) error
	End() error
}

func (g *Generator) newLeg(addr string, req *answer.Request, want checker) *leg {
	l := &leg{g: g, addr: addr, req: req, want: want}
	l.head = []byte("POST " + req.Shape.API.Path() + " HTTP/1.1\r\nHost: " + addr +
		"\r\nUser-Agent: pdmesh-bench\r\nAccept: */*\r\nContent-Type: application/json\r\nContent-Length: ")
	return l
}

// dialTimeout bounds a connection's making.
const dialTimeout = 10 * time.Second

func (l *leg) connect(ctx context.Context) error {
	if l.nc != nil {
		return nil
	}
	d := net.Dialer{Timeout: dialTimeout}
	tcp, err := d.DialContext(ctx, "tcp", l.addr)
	if err != nil {
		return err
	}
	nc, err := wire.NewConn(tcp.(*net.TCPConn))
	if err != nil {
		tcp.Close()
		return err
	}
	l.mu.Lock()
	l.nc = nc
	l.mu.Unlock()
	if l.r == nil {
		l.r = wire.NewReader(nc, readBuffer)
	} else {
		l.r.Reset(nc)
	}
	return nil
}

func (l *leg) drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.nc != nil {
		_ = l.nc.Close()
		l.nc = nil
	}
}

// cut closes the connection under its worker.
func (l *leg) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.nc != nil {
		_ = l.nc.Close()
	}
}

// maybeClosed is how long a connection must have been idle for its end to be
// no failure.
const maybeClosed = time.Second

// errBroken marks answers that ended visibly before their end.
var errBroken = errors.New("broken answer")

// StatusError is an answer with another status than 200.
type StatusError struct {
	Status int
	Text   string
}

func (e *StatusError) Error() string { return fmt.Sprintf("status %d: %s", e.Status, e.Text) }

// say makes the request with the given tag, which goes out with the wait for its
// answer; more goes in as the first members of the body's object.
func (l *leg) say(tag uint64, more []byte) error {
	l.req.SetTag(tag)
	body := l.req.Body
	if len(more) > 0 {
		body = body[1:] // the brace comes with more
	}
	l.out = append(l.out[:0], l.head...)
	l.out = strconv.AppendInt(l.out, int64(len(body)+len(more)), 10)
	l.out = append(l.out, "\r\n\r\n"...)
	l.out = append(l.out, more...)
	if len(body) <= 64<<10 { // a larger one is not copied once more
		l.out = append(l.out, body...)
		body = nil
	}
	l.nc.Queue(l.out, body)
	if l.r.Buffered() > 0 { // more than an answer came before, so nothing may be waited for
		return l.nc.Flush()
	}
	return nil
}

// receive sends the request, reads the answer and checks it.
func (l *leg) receive(tag uint64) error {
	l.fed = false
	h, err := l.r.Head()
	if err != nil {
		return err
	}
	if h.Status != 200 {
		var text []byte
		status := h.Status
		err := l.r.Body(h, func(p []byte) error {
			text = append(text, p[:min(len(p), 300-min(len(text), 300))]...)
			return nil
		})
		if err != nil || h.Close {
			l.drop()
		}
		return &StatusError{Status: status, Text: string(text)}
	}
	l.want.Begin(tag)
	if err := l.r.Body(h, l.feed); err != nil {
		if !errors.Is(err, answer.ErrWrong) {
			err = fmt.Errorf("%w: %w", errBroken, err)
		}
		return err
	}
	if h.Close {
		l.drop()
	}
	return l.want.End()
}

func (l *leg) feed(p []byte) error {
	l.fed = true
	return l.want.Write(p)
}

// exchange is say and receive; the connection is gone after an error. A
// connection that was used before may have been closed by the other side for
// having been idle: then the request goes out once more, on a new one.
func (l *leg) exchange(ctx context.Context, tag uint64, more []byte) error {
	reused := l.nc != nil && l.g.now()-l.used > maybeClosed
	for {
		if err := l.connect(ctx); err != nil {
			return err
		}
		err := l.say(tag, more)
		if err == nil {
			err = l.receive(tag)
		}
		if err == nil {
			l.used = l.g.now()
			return nil
		}
		if _, ok := errors.AsType[*StatusError](err); ok {
			return err
		}
		l.drop()
		if reused && !l.fed && !errors.Is(err, answer.ErrWrong) && !errors.Is(err, errBroken) && ctx.Err() == nil {
			reused = false
			continue
		}
		return err
	}
}
