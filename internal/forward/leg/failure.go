package leg

import (
	"net/http"
	"strconv"
	"time"

	"errors"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/sched"
)

// Failure is the failure of a leg, which has no answer that can be relayed as a success.
type Failure struct {
	Class Class
	Rule  Rule
	// Taken reports whether the instance may have begun to work, so that a single-use KV
	// transfer counts as spent.
	Taken bool
	// Begun reports whether the client has a part of the answer: only a leg that continues it may
	// follow.
	Begun bool
	// Answer is the client's answer if no further attempt is made.
	Answer Answer
	Err    error
}

// Refused reports whether the engine itself refused the request.
func (f *Failure) Refused() bool { return f.Answer.Own == nil && f.Answer.Status >= 400 }

// Answer is a whole answer as it goes to the client: an engine's, or an error of the proxy.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
	Own    *openai.Error // the proxy's own error; nil for an engine's answer
}

// ProxyError returns an Answer for one of the proxy's own errors.
func ProxyError(e *openai.Error) Answer { return Answer{Status: e.Status, Own: e} }

// RetryWait is the Retry-After of a 503 of the proxy.
const RetryWait = time.Second

// ErrStopping is the cause of a request that the proxy ends because it is stopping.
var ErrStopping = errors.New("this proxy is stopping")

// MembershipUnread returns the 503 of a proxy that has not read the membership since its start.
func MembershipUnread() *openai.Error {
	return unavailable("this proxy has not read the list of instances yet; see its /readyz")
}

// NoPick returns the 503 of a request for which no instance was picked; err is the scheduler's.
func NoPick(err error, role instance.Role, model string) *openai.Error {
	switch {
	case errors.Is(err, sched.ErrMembershipUnread):
		return MembershipUnread()
	case errors.Is(err, sched.ErrVersions):
		return unavailable("no pair of one vLLM version is available right now: prefill and decode instances of different versions refuse each other's KV cache")
	case errors.Is(err, sched.ErrBlocks):
		return unavailable("no pair with KV blocks of one size is available right now: prefill and decode instances have different ones, between which their connector cannot transfer KV caches")
	case errors.Is(err, sched.ErrConnectors):
		return unavailable("no pair with one connector is available right now: prefill and decode instances speak different ones")
	}
	return Unavailable(role, model)
}

// Unavailable returns the 503 of a request that no instance of a role can serve.
func Unavailable(role instance.Role, model string) *openai.Error {
	msg := "no " + string(role) + " instance is available right now"
	if model != "" {
		msg += " for model " + strconv.Quote(model)
	}
	return unavailable(msg)
}

// NeedsPrefill returns the 503 of a request that no instance may serve decode-only; reason
// is why it cannot go through a pair.
func NeedsPrefill(reason string) *openai.Error {
	return unavailable("this request cannot go through prefill and decode (" + reason +
		"), and no decode instance could serve it alone: in MoRI-IO's READ mode they would answer with the wrong text")
}

// BudgetSpent returns the 503 of a request whose retry would exceed the bound of the whole proxy.
func BudgetSpent() *openai.Error {
	return unavailable("too many requests are being retried at the moment (--retry-budget); try again")
}

func unavailable(message string) *openai.Error {
	return &openai.Error{Status: http.StatusServiceUnavailable, Type: openai.TypeUnavailable, RetryAfter: RetryWait, Message: message}
}
