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

	"github.com/pdmesh/pdmesh/internal/certs"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/netguard"
	"github.com/pdmesh/pdmesh/internal/sock"
)

// Client sends requests to instances. It is safe for concurrent use.
type Client interface {
	// Do sends one request and gives the answer once its header is there; the
	// caller closes the body. Redirects are never followed. A failure is an
	// *Error; when ctx ended, its Err is the context's cause.
	Do(ctx context.Context, r *Request) (*Response, error)
	// ReleasesBody tells that nothing of the request's body is read any more once
	// Do has returned, however that ended.
	ReleasesBody(r *Request) bool
	// Forget drops the idle connections to an address: another process may
	// stand there now.
	Forget(address string)
	// Close drops idle connections.
	Close()
}

// The names of the implementations, as in --upstream.
const (
	KindOwn = "own" // Pool
	KindStd = "std" // Std
)

// New builds the client of that kind.
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
	// IdleTimeout is how long a connection may lie unused; it must stay below
	// uvicorn's 5 s. Default 4 s.
	IdleTimeout time.Duration
	Guard       netguard.Policy
	// TLS gives the configuration for a new connection to an instance with scheme https;
	// nil: the system's authorities, and the name of the address.
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

// Request is one leg. Header is sent as it is, without Content-Length
// and Host, which the client adds; nobody may change it from then on.
type Request struct {
	Instance *instance.Instance
	Method   string
	Path     string // with the query, beginning with '/'
	Header   http.Header
	Body     [][]byte // sent in order, never changed; nil for none
}

// Response is an engine's answer. Reading Body gives *Error with StageBody;
// closing it before its end closes the connection. Body belongs to one
// goroutine. Header names are canonical, Transfer-Encoding and Content-Length are
// not among them; other answers may have the same Header, so nobody changes it.
type Response struct {
	Status int
	Header http.Header
	// Length of the body in bytes, -1 if not known beforehand.
	Length int64
	Body   io.ReadCloser
}

// staleWithin is how soon after a request was begun the end of a used connection is
// taken for the engine's closing of an idle one, which happens while the request is on
// its way. Later the engine has taken the request, and may have worked on it.
const idleCloseWindow = 500 * time.Millisecond

// closedWhileIdle tells that the end of a used connection may be such a close.
func closedWhileIdle(started time.Time) bool { return time.Since(started) < idleCloseWindow }

// Stage tells how far a request had come when it failed.
type Stage uint8

// The stages, in order.
const (
	// StageNotConnected: no connection; the engine saw nothing.
	StageNotConnected Stage = iota
	// StageStale: a pooled connection turned out to be closed by the engine
	// (uvicorn closes idle ones after 5 s) before any byte of an answer.
	StageStale
	// StageSent: sent, at least in part, and no byte came back.
	StageSent
	// StageHeaders: the answer began but its header is broken.
	StageHeaders
	// StageBody: the answer broke off.
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
	// MaybeTaken tells that some try of this exchange reached the engine, so
	// that it may have begun to work on it.
	MaybeTaken bool
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s: %s: %s", e.Address, e.Stage, plainCause(e.Err))
}

func (e *Error) Unwrap() error { return e.Err }

// Refused tells that nothing listens at the address any more, or the network
// says that nobody is there: proof, not suspicion, that the instance is away.
func (e *Error) Refused() bool {
	return e.Stage == StageNotConnected &&
		(errors.Is(e.Err, syscall.ECONNREFUSED) || errors.Is(e.Err, syscall.EHOSTUNREACH) ||
			errors.Is(e.Err, syscall.ENETUNREACH))
}

// Untrusted gives why TLS with the engine was refused, by either side; nil where it was
// not. An engine that refuses has taken nothing.
func (e *Error) Untrusted() *certs.Error {
	refused, _ := errors.AsType[*certs.Error](e.Err)
	return refused
}

// Exhausted tells that there was no connection because nothing is left here to make
// one of, whoever it is to.
func (e *Error) Exhausted() bool { return e.Stage == StageNotConnected && sock.Exhausted(e.Err) }

// Timeout tells that a deadline, not the peer, ended the exchange.
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
