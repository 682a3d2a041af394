package upstream

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/transport/certs"
	"github.com/pdmesh/pdmesh/internal/transport/http1"
	"github.com/pdmesh/pdmesh/internal/transport/netguard"
	"github.com/pdmesh/pdmesh/internal/transport/sock"
)

// Client sends requests to instances. It is safe for concurrent use.
type Client interface {
	// Do sends one request and returns the response once its header is read; the
	// caller closes the body. Redirects are not followed. Every error is an
	// *Error; if ctx has ended, its Err is the cause of the context.
	Do(ctx context.Context, r *Request) (*Response, error)
	// ReleasesBody reports whether the request's body is no longer read after Do has
	// returned, with or without an error.
	ReleasesBody(r *Request) bool
	// Forget closes the idle connections to an address: another process may
	// listen there now.
	Forget(address string)
	// Close closes the idle connections.
	Close()
}

// KindOwn and KindStd are the values of --upstream.
const (
	KindOwn = "own" // Pool, the HTTP/1.1 client of this package
	KindStd = "std" // Std, that of net/http
)

// New returns a client of kind KindOwn or KindStd.
func New(kind string, o Options) Client {
	if kind == KindStd {
		return NewStd(o)
	}
	return NewPool(o)
}

// Options configure a Client; the zero value is usable.
type Options struct {
	ConnectTimeout time.Duration // default 1 s
	// IdleTimeout is the maximum time that a connection is kept idle; default 4 s. It must
	// be shorter than uvicorn's --timeout-keep-alive, which is 5 s by default.
	IdleTimeout time.Duration
	Guard       netguard.Policy
	// TLS returns the configuration for a new connection to an instance with scheme
	// https. nil means the system's authorities and the host name of the address.
	TLS func() *tls.Config

	retryWait time.Duration // between two dials for one connection; set by tests only
}

func (o *Options) setDefaults() {
	o.ConnectTimeout = cmp.Or(o.ConnectTimeout, time.Second)
	o.retryWait = cmp.Or(o.retryWait, min(o.ConnectTimeout/maxTries, maxRetryWait))
	o.IdleTimeout = cmp.Or(o.IdleTimeout, 4*time.Second)
}

// Request is the request of one leg. Header is sent unchanged, except for Content-Length
// and Host, which the client adds. It must not be modified after Do was called.
type Request struct {
	Instance *instance.Instance
	Method   string
	Path     string // not escaped, with the query, beginning with '/'
	Header   http.Header
	Body     [][]byte // sent in order, never modified; nil for none
	// Once excludes a second try after a stale connection: the engine may have received the
	// first, and must not receive the request twice.
	Once bool
}

// Response is the response of an engine. Errors of Body are of type *Error with
// StageBody. Closing Body before its end closes the connection. Body is not safe for
// concurrent use. Names in Header are canonical, without Transfer-Encoding and
// Content-Length. Responses may share one Header, so it must not be modified.
type Response struct {
	Status int
	Header http.Header
	// Length of the body in bytes, -1 if unknown.
	Length int64
	Body   io.ReadCloser
}

// idleCloseWindow bounds the time after the start of a request in which the engine's close
// of an idle connection can still arrive. If a reused connection ends later, the engine has
// received the request and may have processed it.
const idleCloseWindow = 500 * time.Millisecond

// closedWhileIdle reports whether a reused connection that ends now may have been
// closed by the engine as idle while the request was in transit.
func closedWhileIdle(started time.Time) bool { return time.Since(started) < idleCloseWindow }

// Stage is the stage that a request had reached when it failed.
type Stage uint8

// The stages, in order.
const (
	// StageNotConnected means that there was no connection, so the engine received nothing.
	StageNotConnected Stage = iota
	// StageStale means that the engine closed a pooled connection before any byte of a
	// response. uvicorn closes idle ones after 5 s.
	StageStale
	// StageSent means that the request was sent, at least in part, and no byte was received.
	StageSent
	// StageHeaders means that the response began, but its head is invalid or incomplete.
	StageHeaders
	// StageBody means that the body of the response was cut off.
	StageBody
)

func (s Stage) String() string {
	return [...]string{"not connected", "stale connection", "lost before an answer", "bad answer header", "answer broke off"}[s]
}

// Error is a failed exchange with an engine.
type Error struct {
	Stage   Stage
	Address string
	Err     error
	// MaybeTaken reports whether a try may have reached the engine, which then may have
	// started to process the request.
	MaybeTaken bool
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s: %s: %s", e.Address, e.Stage, plainCause(e.Err))
}

func (e *Error) Unwrap() error { return e.Err }

// causeOf returns the cause of ctx if it has ended, which then is the reason for err, else err.
func causeOf(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// Refused reports whether nothing listens at the address, or the network has no route to
// it. Unlike a timeout, that proves that the instance is down.
func (e *Error) Refused() bool {
	return e.Stage == StageNotConnected &&
		(errors.Is(e.Err, syscall.ECONNREFUSED) || errors.Is(e.Err, syscall.EHOSTUNREACH) ||
			errors.Is(e.Err, syscall.ENETUNREACH))
}

// Untrusted returns the error if either side refused the TLS handshake, otherwise nil. An
// engine that refuses the handshake has not received the request.
func (e *Error) Untrusted() *certs.Error {
	refused, _ := errors.AsType[*certs.Error](e.Err)
	return refused
}

// Exhausted reports whether this process or machine lacks the resources for a connection
// to any engine; see sock.Exhausted.
func (e *Error) Exhausted() bool { return e.Stage == StageNotConnected && sock.Exhausted(e.Err) }

// TooLarge reports whether the head or the trailer of the response exceeds the limits of this client.
// Other engines would send the same.
func (e *Error) TooLarge() bool {
	return errors.Is(e.Err, errHeadTooLarge) || errors.Is(e.Err, http1.ErrManyFields) || errors.Is(e.Err, http1.ErrLargeTrailer) ||
		e.Stage == StageHeaders && strings.Contains(e.Err.Error(), "server response headers exceeded") // net/http has no value for it
}

// Timeout reports whether a deadline, not the peer, ended the exchange.
func (e *Error) Timeout() bool {
	var n net.Error
	return errors.As(e.Err, &n) && n.Timeout()
}

// plainCause returns the text of err without the prefixes that net errors add.
func plainCause(err error) string {
	if refused, ok := errors.AsType[*certs.Error](err); ok {
		return refused.Error()
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Err != nil {
		return op.Op + ": " + strings.TrimPrefix(op.Err.Error(), "connect: ")
	}
	return err.Error()
}
