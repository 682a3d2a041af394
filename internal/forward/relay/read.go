package relay

import (
	"errors"
	"io"
	"time"

	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/transport/upstream"
)

// ErrTooLarge is the error of ReadAll for an answer that is larger than its limit.
var ErrTooLarge = errors.New("the answer is too large")

// ReadAll reads an engine's whole answer into memory, up to limit bytes.
func ReadAll(resp *upstream.Response, limit int64) ([]byte, error) {
	if resp.Length > limit {
		return nil, ErrTooLarge
	}
	if resp.Length > 0 {
		buf := make([]byte, resp.Length+1)
		n, err := io.ReadFull(resp.Body, buf[:resp.Length])
		if err != nil {
			return buf[:n], err
		}
		return buf[:n], readEnd(resp.Body, buf[n:])
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if err == nil && int64(len(b)) > limit {
		return nil, ErrTooLarge
	}
	return b, err
}

const (
	// maxErrorBody bounds the error texts that are passed on, in bytes.
	maxErrorBody = 1 << 20
	// errorGrace bounds the wait for the body of an error when another instance is tried next:
	// the client gets that body only if all others fail, too.
	errorGrace = time.Second
)

// ReadError reads an answer whose status is not 200 and judges it. idle bounds the wait for
// the next bytes of its body.
func ReadError(l *leg.Leg, resp *upstream.Response, idle time.Duration) *leg.Failure {
	f := l.JudgeStatus(resp.Status, resp.Header)
	if f.Rule.Retry {
		idle = min(idle, errorGrace)
	}
	l.SetLimit(leg.GraceLimit(idle))
	if f.Answer.Own != nil {
		return f
	}
	body, err := ReadAll(resp, maxErrorBody)
	if err != nil {
		// The status determines the consequences; the body is lost.
		body = (&openai.Error{Status: resp.Status, Type: openai.TypeBadGateway,
			Message: "the instance's error text could not be read"}).JSON()
		f.Answer.Header = resp.Header.Clone() // the map may be shared with other answers
		f.Answer.Header.Set("Content-Type", "application/json")
	}
	f.Answer.Body = body
	return l.JudgeBody(f, body)
}
