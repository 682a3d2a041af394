package relay

import (
	"bytes"
	"errors"
	"io"
	"time"

	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/upstream"
)

// ErrTooLarge tells that an engine's answer passes the bound of ReadAll.
var ErrTooLarge = errors.New("the answer is too large")

// ReadAll reads an engine's answer that is not for the client, up to limit bytes.
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
	// errorGrace is how long an engine may take over the text of an error that is not
	// the last word: it is for the client that gets it if no other instance serves.
	errorGrace = time.Second
)

// noSuchRoute is how the framework under vLLM answers where it has no such route.
func noSuchRoute() []byte { return []byte(`{"detail":"Not Found"}`) }

// ReadError reads an answer whose status is not 200 and judges it. It waits for its
// text no longer than for the next piece of any answer, which idle is.
func ReadError(l *leg.Leg, resp *upstream.Response, idle time.Duration) *leg.Failure {
	f := l.JudgeStatus(resp.Status, resp.Header)
	if f.Rule.Retry {
		idle = min(idle, errorGrace)
	}
	l.SetLimit(idle, leg.ErrIdleTimeout)
	if f.Answer.Own != nil {
		return f
	}
	body, err := ReadAll(resp, maxErrorBody)
	if err != nil {
		// The status alone still says what to do; its text is lost.
		body = (&openai.Error{Status: resp.Status, Type: openai.TypeBadGateway,
			Message: "the instance's error text could not be read"}).JSON()
		f.Answer.Header = resp.Header.Clone() // which other answers may have, too
		f.Answer.Header.Set("Content-Type", "application/json")
	}
	f.Answer.Body = body
	if f.Class == leg.ModelMissing && bytes.Equal(body, noSuchRoute()) {
		return leg.NewFailure(leg.Status4xx, f.Answer, f.Err) // it has the model, and not the route
	}
	return l.JudgeBody(f, body)
}
