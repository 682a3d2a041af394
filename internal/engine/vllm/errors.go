package vllm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/pdmesh/pdmesh/internal/transport/certs"
	"github.com/pdmesh/pdmesh/internal/transport/sock"
)

// Errors of the calls; test with errors.Is.
var (
	// ErrBase: the engine's URL itself is unusable.
	ErrBase = errors.New("invalid engine URL")
	// ErrRefused: no process listens at the address. The engine has exited, does not listen yet,
	// or listens elsewhere.
	ErrRefused = errors.New("connection refused")
	// ErrNotSent: the call did not reach an engine for a local reason: no descriptor or memory
	// for a connection is left, or no name server answers.
	ErrNotSent = errors.New("could not ask")
	// ErrTimeout: the deadline passed, the call's own or the caller's.
	ErrTimeout = errors.New("no answer")
	// ErrClosed: the connection was closed before the answer was complete.
	ErrClosed = errors.New("connection closed")
	// ErrTLS: the handshake failed, for example because a side does not trust the other's
	// certificate.
	ErrTLS = errors.New("no TLS")
	// ErrTooLarge: the answer exceeds its bound.
	ErrTooLarge = errors.New("answer too large")
	// ErrNotVLLM: the answer is not one of vLLM.
	ErrNotVLLM = errors.New("not an answer of vLLM")
	// ErrProxy: the answer comes from a proxy of this project.
	ErrProxy = errors.New("is a pdmesh proxy")
	// ErrNoModels: /v1/models lists nothing.
	ErrNoModels = errors.New("the engine lists no model")
)

// StatusError is an answer other than 200.
type StatusError struct {
	Code int
	Text string // beginning of the body, printable
	key  bool   // a key was sent
}

func (e *StatusError) Error() string {
	switch {
	case e.Code == http.StatusUnauthorized && !e.key:
		return "HTTP 401: the engine wants an API key (--engine-api-key)"
	case e.Code == http.StatusUnauthorized || e.Code == http.StatusForbidden:
		return fmt.Sprintf("HTTP %d: the engine refuses the API key (--engine-api-key)", e.Code)
	case e.Code == http.StatusServiceUnavailable:
		return "HTTP 503: the engine reports that it is dead or not ready" + e.quoted()
	case e.Code == http.StatusNotFound:
		return "HTTP 404: no such route: is it a vLLM server?"
	case e.Code >= 300 && e.Code < 400:
		return fmt.Sprintf("HTTP %d: redirects are not followed; use the address of the engine", e.Code)
	}
	return fmt.Sprintf("HTTP %d", e.Code) + e.quoted()
}

func (e *StatusError) quoted() string {
	if e.Text == "" {
		return ""
	}
	return " (" + e.Text + ")"
}

// explain translates a transport error into one about the engine. ctx is the caller's context, cctx that of
// the call, with its deadline.
func explain(ctx, cctx context.Context, base string, timeout time.Duration, err error) error {
	var dns *net.DNSError
	var refused *certs.Error
	var late net.Error
	text := err.Error()
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return context.Cause(ctx)
	case errors.As(certs.Explain(err), &refused) && refused.Reason == certs.NoTLS:
		return fmt.Errorf("%w: it speaks plain HTTP; use http://", ErrNotVLLM)
	case refused != nil:
		return fmt.Errorf("%w with %s: %s", ErrTLS, hostOf(base), refused.Text)
	case sock.Exhausted(err):
		return fmt.Errorf("%w: %w", ErrNotSent, unwrapURL(err))
	case errors.As(err, &dns) && dns.Temporary():
		return fmt.Errorf("%w: cannot resolve %s: %s", ErrNotSent, hostOf(base), dns.Err)
	case cctx.Err() != nil, errors.Is(err, context.DeadlineExceeded), errors.As(err, &late) && late.Timeout():
		return fmt.Errorf("%w from %s within %s: is it hung or unreachable?", ErrTimeout, hostOf(base), rounded(timeout))
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%w: is vLLM running at %s?", ErrRefused, hostOf(base))
	case errors.As(err, &dns):
		return fmt.Errorf("cannot resolve %s: %s", hostOf(base), dns.Err)
	case strings.Contains(text, "malformed HTTP"):
		return fmt.Errorf("%w: %s does not speak HTTP there", ErrNotVLLM, hostOf(base))
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return fmt.Errorf("%w before the whole answer had come", ErrClosed)
	}
	return unwrapURL(err)
}

// rounded rounds the remaining time of a caller's deadline, so that equal limits have equal texts.
func rounded(d time.Duration) time.Duration {
	if d < time.Second {
		return d.Round(time.Millisecond)
	}
	return d.Round(100 * time.Millisecond)
}

// unwrapURL removes net/http's prefix `Get "http://…": `, which callError adds already.
func unwrapURL(err error) error {
	if ue, ok := errors.AsType[*url.Error](err); ok && ue.Op == "Get" {
		return ue.Err
	}
	return err
}
