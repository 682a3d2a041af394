package upstream

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pdmesh/pdmesh/internal/transport/certs"
)

// Std is a Client on top of http.Transport.
type Std struct {
	pooled atomic.Pointer[http.Transport] // replaced by Forget
	// unpooled never reuses a connection. It retries requests that met a stale one.
	unpooled     *http.Transport
	staleRetries atomic.Int64
}

// NewStd returns a Std.
func NewStd(o Options) *Std {
	o.setDefaults()
	dial := NewDialer(o).DialContext
	t := &http.Transport{
		DialContext:    dial,
		DialTLSContext: certs.DialTLS(dial, o.TLS, o.ConnectTimeout+2*time.Second),
		// Proxy is not set: engines are reached directly, whatever the environment says.
		// Compression would hide the boundaries of events. With HTTP/2, the loss of one
		// connection would end many streams.
		DisableCompression:     true,
		TLSNextProto:           map[string]func(string, *tls.Conn) http.RoundTripper{},
		MaxIdleConnsPerHost:    1024,
		IdleConnTimeout:        o.IdleTimeout,
		MaxResponseHeaderBytes: 64 << 10,
		WriteBufferSize:        32 << 10,
		ReadBufferSize:         8 << 10,
	}
	unpooled := t.Clone()
	unpooled.DisableKeepAlives = true
	c := &Std{unpooled: unpooled}
	c.pooled.Store(t)
	return c
}

// ReleasesBody implements Client. It is false, because http.Transport may still send
// a body after it has returned the response.
func (c *Std) ReleasesBody(*Request) bool { return false }

// Forget closes the idle connections to all addresses: http.Transport cannot close
// those to one address only. Running exchanges do not return theirs to the new transport.
func (c *Std) Forget(string) {
	c.pooled.Swap(c.pooled.Load().Clone()).CloseIdleConnections()
}

// Close closes the idle connections.
func (c *Std) Close() {
	c.pooled.Load().CloseIdleConnections()
	c.unpooled.CloseIdleConnections()
}

// progress records the events of one try. The transport sets them from its own
// goroutines, some after RoundTrip has returned.
type progress struct {
	connected, reused, answered atomic.Bool
}

// Do implements Client. A request that meets a stale connection is retried once,
// immediately, on a new one, unless Request.Once excludes it: the engine has most likely not
// received it.
func (c *Std) Do(ctx context.Context, r *Request) (*Response, error) {
	started := time.Now()
	resp, err := c.try(ctx, c.pooled.Load(), r, started)
	if err == nil {
		return resp, nil
	}
	var e *Error
	if !errors.As(err, &e) || e.Stage != StageStale || r.Once || ctx.Err() != nil {
		return nil, err
	}
	c.staleRetries.Add(1)
	resp, err = c.try(ctx, c.unpooled, r, started)
	if errors.As(err, &e) {
		e.MaybeTaken = true
	}
	return resp, err
}

func (c *Std) try(ctx context.Context, t *http.Transport, r *Request, started time.Time) (*Response, error) {
	var p progress
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(i httptrace.GotConnInfo) {
			p.reused.Store(i.Reused)
			p.connected.Store(true)
		},
		GotFirstResponseByte: func() { p.answered.Store(true) },
	})
	resp, err := t.RoundTrip(c.request(traced, r))
	if err != nil {
		return nil, c.classify(ctx, r, &p, started, err)
	}
	if resp.StatusCode == http.StatusSwitchingProtocols {
		_ = resp.Body.Close() // this body is the connection, which must not stay open
		return nil, &Error{Stage: StageHeaders, Address: r.Instance.Address, Err: errSwitched, MaybeTaken: true}
	}
	resp.Header.Del("Content-Length")
	return &Response{
		Status: resp.StatusCode, Header: resp.Header, Length: resp.ContentLength,
		Body: &typedBody{ReadCloser: resp.Body, ctx: ctx, address: r.Instance.Address},
	}, nil
}

func (c *Std) request(ctx context.Context, r *Request) *http.Request {
	path, query, _ := strings.Cut(r.Path, "?")
	scheme := cmp.Or(r.Instance.Record.Scheme, "http")
	req := &http.Request{
		Method: r.Method,
		URL:    &url.URL{Scheme: scheme, Host: r.Instance.Address, Path: path, RawQuery: query},
		Proto:  "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: r.Header,
		Host:   r.Instance.Address,
	}
	if n := r.size(); n > 0 {
		// Without GetBody the transport never resends a body by itself.
		body := net.Buffers(slices.Clone(r.Body)) // reading changes its elements
		req.Body = io.NopCloser(&body)
		req.ContentLength = n
	}
	return req.WithContext(ctx)
}

func (c *Std) classify(ctx context.Context, r *Request, p *progress, started time.Time, err error) *Error {
	e := &Error{Address: r.Instance.Address, Err: err}
	switch {
	case e.Untrusted() != nil && !p.answered.Load():
		e.Stage = StageNotConnected // in TLS 1.3 the engine may refuse only after the handshake
	case !p.connected.Load():
		e.Stage = StageNotConnected
	case p.answered.Load():
		e.Stage, e.MaybeTaken = StageHeaders, true
	case p.reused.Load() && ctx.Err() == nil && closedWhileIdle(started):
		e.Stage, e.MaybeTaken = StageStale, true
	default:
		e.Stage, e.MaybeTaken = StageSent, true
	}
	e.Err = causeOf(ctx, err)
	return e
}

// typedBody converts the errors of reading a response body to *Error.
type typedBody struct {
	io.ReadCloser
	ctx     context.Context //nolint:containedctx // the exchange's own, to name the cause of an end
	address string
}

func (b *typedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == nil || err == io.EOF { // Read's contract: io.EOF itself
		return n, err
	}
	return n, &Error{Stage: StageBody, Address: b.address, Err: causeOf(b.ctx, err), MaybeTaken: true}
}
