package upstream

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// Pool is a Client that implements HTTP/1.1 over TCP itself. It uses a Std for instances
// with scheme https. It is safe for concurrent use.
type Pool struct {
	opts   Options
	dialer *Dialer
	https  *Std

	mu    sync.Mutex // guards hosts; taken before any host.mu
	hosts map[instance.Key]*host

	sweeper      *time.Timer // runs sweep
	sweeping     atomic.Bool // sweeper is set
	closed       atomic.Bool
	staleRetries atomic.Int64
	started      time.Time // base of conn.idleSince
}

// NewPool returns a Pool.
func NewPool(o Options) *Pool {
	o.setDefaults()
	p := &Pool{opts: o, dialer: NewDialer(o), https: NewStd(o), hosts: map[instance.Key]*host{}, started: time.Now()}
	// release sets the timer when a connection becomes idle.
	p.sweeper = time.AfterFunc(time.Hour, p.sweep)
	p.sweeper.Stop()
	return p
}

// Close closes the idle connections. Running exchanges continue, and the pool keeps no
// connection after them.
func (p *Pool) Close() {
	p.closed.Store(true)
	p.mu.Lock()
	p.sweeper.Stop()
	p.mu.Unlock()
	p.closeIdle(func(instance.Key) bool { return true })
	p.https.Close()
}

// ReleasesBody implements Client. It is false for https, which Std serves.
func (p *Pool) ReleasesBody(r *Request) bool { return !isHTTPS(r.Instance) }

var headBuffers = sync.Pool{New: func() any { return new(make([]byte, 0, 1<<10)) }} //nolint:gochecknoglobals // a pool is shared by nature

// maxPooledHead bounds the size in bytes of pooled buffers: one huge head must not stay
// in memory forever.
const maxPooledHead = 16 << 10

// Do implements Client. A request that meets a stale connection is retried once,
// immediately, on a new one, unless Request.Once excludes it.
func (p *Pool) Do(ctx context.Context, r *Request) (*Response, error) {
	if isHTTPS(r.Instance) {
		return p.https.Do(ctx, r)
	}
	if ctx.Err() != nil {
		return nil, &Error{Stage: StageNotConnected, Address: r.Instance.Address, Err: context.Cause(ctx)}
	}
	buf, _ := headBuffers.Get().(*[]byte)
	defer func() {
		if cap(*buf) <= maxPooledHead {
			headBuffers.Put(buf)
		}
	}()
	wire, err := appendHead((*buf)[:0], r)
	*buf = wire
	if err != nil {
		return nil, &Error{Stage: StageNotConnected, Address: r.Instance.Address, Err: err}
	}
	body := r.Body
	if r.size() <= maxJoinedBody {
		for _, s := range body {
			wire = append(wire, s...)
		}
		*buf, body = wire, nil
	}
	m := message{Request: r, head: wire, body: body, started: time.Now()}
	h, toClose := p.activeHost(r.Instance)
	closeAll(toClose)
	a, e := p.reuseOrDial(ctx, h, &m)
	if e != nil {
		return nil, e
	}
	return &a.Response, nil
}

// message is a request ready for the wire.
type message struct {
	*Request

	head    []byte // includes a small body
	body    [][]byte
	started time.Time
}

// reuseOrDial runs the exchange on an idle connection, or on a new one if there is none
// or the idle one is stale. The exchange must remove its count from h.active.
func (p *Pool) reuseOrDial(ctx context.Context, h *host, m *message) (*answer, *Error) {
	var a *answer
	var e *Error
	for {
		c := p.popIdle(h, m.started)
		if c == nil {
			return p.tryNew(ctx, h, m)
		}
		if a, e = p.try(ctx, c, m); e != errTryAnother {
			break
		}
	}
	if e == nil || e.Stage != StageStale || m.Once || ctx.Err() != nil {
		return a, e
	}
	p.staleRetries.Add(1)
	h, toClose := p.activeHost(m.Instance)
	closeAll(toClose)
	a, e = p.tryNew(ctx, h, m)
	if e != nil {
		e.MaybeTaken = true
	}
	return a, e
}

// tryNew runs the exchange on a new connection.
func (p *Pool) tryNew(ctx context.Context, h *host, m *message) (*answer, *Error) {
	c, err := p.dial(ctx, h, m.Instance.Address)
	if err != nil {
		h.mu.Lock()
		h.active--
		h.mu.Unlock()
		return nil, &Error{Stage: StageNotConnected, Address: m.Instance.Address, Err: causeOf(ctx, err)}
	}
	return p.try(ctx, c, m)
}

func (p *Pool) dial(ctx context.Context, h *host, address string) (*conn, error) {
	h.mu.Lock()
	generation := h.generation // read before the dial: an incarnation that starts meanwhile must not get this connection
	h.mu.Unlock()
	nc, err := p.dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	tcp, ok := nc.(*net.TCPConn)
	if !ok {
		_ = nc.Close()
		return nil, errors.New("not a TCP connection")
	}
	c, err := newConn(tcp)
	if err != nil {
		_ = nc.Close()
		return nil, err
	}
	c.host, c.generation = h, generation
	return c, nil
}

// errTryAnother is the error of a try that sent nothing because its connection was no
// longer idle. The exchange then tries another connection.
var errTryAnother = &Error{Stage: StageStale, Err: errNotIdle}

// try runs the exchange on c until the head of the response is read. From here on, the
// end of ctx closes the connection, also during a read or a write.
func (p *Pool) try(ctx context.Context, c *conn, m *message) (*answer, *Error) {
	unwatch := context.AfterFunc(ctx, c.abort)
	c.setRequest(m.head, m.body)
	var h head
	sentAll, err := c.exchange(&h)
	if err == nil {
		a := &answer{ctx: ctx, unwatch: unwatch, pool: p, conn: c, address: m.Instance.Address}
		if err = a.start(m.Method, &h, sentAll); err == nil {
			return a, nil
		}
	}
	unwatch()
	if err == errNotIdle && ctx.Err() == nil { //nolint:errorlint // our own, unwrapped
		c.close() // h.active still counts the exchange
		return nil, errTryAnother
	}
	e := &Error{Address: m.Instance.Address, MaybeTaken: true}
	switch {
	case c.answered:
		e.Stage = StageHeaders
	case c.reused && ctx.Err() == nil && closedWhileIdle(m.started):
		e.Stage = StageStale
	default:
		e.Stage = StageSent
	}
	e.Err = causeOf(ctx, err)
	c.releaseRequest()
	p.release(c, false)
	return nil, e
}
