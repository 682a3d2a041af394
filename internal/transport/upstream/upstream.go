package upstream

import (
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
	// Do sends one request and returns the answer once its header is there; the
	// caller closes the body. Redirects are never followed. A failure is an
	// *Error; when ctx ended, its Err is the context's cause.
	Do(ctx context.Context, r *Request) (*Response, error)
	// ReleasesBody reports whether the request's body is read no more once Do has
	// returned, with an error or without one.
	ReleasesBody(r *Request) bool
	// Forget drops the idle connections to an address: another process may
	// listen there now.
	Forget(address string)
	// Close drops idle connections.
	Close()
}

// KindOwn and KindStd name the implementations, as --upstream does.
const (
	KindOwn = "own" // Pool
	KindStd = "std" // Std
)

// New builds the client of a kind.
func New(kind string, o Options) (Client, error) {
	switch kind {
	case KindOwn:
		return NewPool(o), nil
	case KindStd:
		return NewStd(o), nil
	}
	return nil, fmt.Errorf("unknown upstream client %q: use %s or %s", kind, KindOwn, KindStd)
}

// Options configure a Client; the zero value works.
type Options struct {
	ConnectTimeout time.Duration // default 1 s
	// IdleTimeout is how long a connection may be idle. It must be shorter than
	// uvicorn's --timeout-keep-alive, 5 s by default. Default 4 s.
	IdleTimeout time.Duration
	Guard       netguard.Policy
	// TLS returns the configuration for a new connection to an instance with scheme
	// https. nil trusts the system's authorities and expects the address's name.
	TLS func() *tls.Config
}

func (o *Options) setDefaults() {
	if o.ConnectTimeout <= 0 {
		o.ConnectTimeout = time.Second
	}
	if o.IdleTimeout <= 0 {
		o.IdleTimeout = 4 * time.Second
	}
}

// Request is what one leg sends. Header is sent as it is, but for Content-Length
// and Host, which the client adds. It must not be changed after Do has begun.
type Request struct {
	Instance *instance.Instance
	Method   string
	Path     string // with the query, beginning with '/'
	Header   http.Header
	Body     [][]byte // sent in order, never changed; nil for none
}

// Response is an engine's answer. A read of Body fails with an *Error of StageBody.
// Closing Body before its end closes the connection. Body belongs to one
// goroutine. Names in Header are canonical, without Transfer-Encoding and
// Content-Length. Answers may share one Header, so it must not be changed.
type Response struct {
	Status int
	Header http.Header
	// Length of the body in bytes, -1 if not known beforehand.
	Length int64
	Body   io.ReadCloser
}

// idleCloseWindow bounds how long after its start a request can still meet the
// engine's close of an idle connection. If a reused connection ends later than that,
// the engine has the request and may have worked on it.
const idleCloseWindow = 500 * time.Millisecond

// closedWhileIdle reports whether a reused connection that ends now may have been
// closed by the engine as idle, while the request was on its way.
func closedWhileIdle(started time.Time) bool { return time.Since(started) < idleCloseWindow }

// Stage reports how far a request had come when it failed.
type Stage uint8

// The stages, in order.
const (
	// StageNotConnected: there was no connection, so the engine saw nothing.
	StageNotConnected Stage = iota
	// StageStale: the engine closed a pooled connection before any byte of an
	// answer. uvicorn closes idle ones after 5 s.
	StageStale
	// StageSent: the request was sent, at least in part, and no byte came back.
	StageSent
	// StageHeaders: the answer began, but its head is broken.
	StageHeaders
	// StageBody: the answer's body broke off.
	StageBody
)

func (s Stage) String() string {
	switch s {
	case StageNotConnected:
		return "not connected"
	case StageStale:
		return "stale connection"
	case StageSent:
		return "lost before an answer"
	case StageHeaders:
		return "bad answer header"
	case StageBody:
		return "answer broke off"
	}
	return "unknown"
}

// Error is a failed exchange with an engine.
type Error struct {
	Stage   Stage
	Address string
	Err     error
	// MaybeTaken reports whether a try may have reached the engine, which then may have
	// begun to work on the request.
	MaybeTaken bool
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s: %s: %s", e.Address, e.Stage, plainCause(e.Err))
}

func (e *Error) Unwrap() error { return e.Err }

// Refused reports whether nothing listens at the address, or that the network has no way
// to it. That proves that the instance is away; a timeout would not.
func (e *Error) Refused() bool {
	return e.Stage == StageNotConnected &&
		(errors.Is(e.Err, syscall.ECONNREFUSED) || errors.Is(e.Err, syscall.EHOSTUNREACH) ||
			errors.Is(e.Err, syscall.ENETUNREACH))
}

// Untrusted returns why either side refused the TLS handshake, nil if neither did. An
// engine that refuses it has taken nothing.
func (e *Error) Untrusted() *certs.Error {
	refused, _ := errors.AsType[*certs.Error](e.Err)
	return refused
}

// Exhausted reports whether this process or machine has nothing left to make a connection
// of, to any engine; see sock.Exhausted.
func (e *Error) Exhausted() bool { return e.Stage == StageNotConnected && sock.Exhausted(e.Err) }

// TooLarge reports whether the head or the trailer of the answer is larger than this client reads. Other
// engines would send the same.
func (e *Error) TooLarge() bool {
	return errors.Is(e.Err, errHeadTooLarge) || errors.Is(e.Err, http1.ErrManyFields) || errors.Is(e.Err, http1.ErrLargeTrailer) ||
		e.Stage == StageHeaders && strings.Contains(e.Err.Error(), "server response headers exceeded") // net/http has no value for it
}

// Timeout reports whether a deadline, not the peer, ended the exchange.
func (e *Error) Timeout() bool {
	var n net.Error
	return errors.As(e.Err, &n) && n.Timeout()
}

// plainCause drops the nesting that net errors print in front of the cause.
func plainCause(err error) string {
	if refused, ok := errors.AsType[*certs.Error](err); ok {
		return refused.Error()
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Err != nil {
		return op.Op + ": " + strings.TrimPrefix(op.Err.Error(), "connect: ")
	}
	return err.Error()
}
