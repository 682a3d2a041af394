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

// Failure is a leg that gave no answer to pass on as a success.
type Failure struct {
	Class Class
	Rule  Rule
	// Taken tells that the instance may have begun to work, so that a
	// single-use hand-over must be held for spent.
	Taken bool
	// Answer is what the client gets if this failure is the last one.
	Answer Answer
	Err    error
}

// NewFailure makes a failure of a class.
func NewFailure(class Class, a Answer, err error) *Failure {
	r := class.Rule()
	return &Failure{Class: class, Rule: r, Taken: !r.SameKV, Answer: a, Err: err}
}

// Refused tells that the engine itself turned the request away.
func (f *Failure) Refused() bool { return f.Answer.Own == nil && f.Answer.Status >= 400 }

// Answer is an error as it goes to the client: the engine's own, or ours.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
	Own    *openai.Error // nil for the engine's
}

// ProxyError is an answer of the proxy itself.
func ProxyError(e *openai.Error) Answer { return Answer{Status: e.Status, Own: e} }

// RetryWait is told to clients when nobody can serve them now.
const RetryWait = time.Second

// MembershipUnread is Unavailable of a proxy that has started and found no etcd yet.
func MembershipUnread() *openai.Error {
	return unavailable("this proxy has not read yet which instances there are; see its /readyz")
}

// NoPick is what a client hears whose request nobody was found for.
func NoPick(err error, role instance.Role, model string) *openai.Error {
	switch {
	case errors.Is(err, sched.ErrMembershipUnread):
		return MembershipUnread()
	case errors.Is(err, sched.ErrVersions):
		return unavailable("no pair of one vLLM version is available right now: prefill and decode instances of different versions refuse each other's KV cache")
	case errors.Is(err, sched.ErrBlocks):
		return unavailable("no pair with KV blocks of one size is available right now: prefill and decode instances have different ones, between which their connector hands nothing over")
	case errors.Is(err, sched.ErrConnectors):
		return unavailable("no pair with one connector is available right now: prefill and decode instances speak different ones")
	}
	return Unavailable(role, model)
}

// Unavailable is what a client hears when a role has nobody who could serve it.
func Unavailable(role instance.Role, model string) *openai.Error {
	msg := "no " + string(role) + " instance is available right now"
	if model != "" {
		msg += " for model " + strconv.Quote(model)
	}
	return unavailable(msg)
}

// NeedsPrefill is what a client hears when no decode instance may serve it alone;
// reason is why it cannot go through a pair.
func NeedsPrefill(reason string) *openai.Error {
	return unavailable("this request cannot go through prefill and decode (" + reason +
		"), and no decode instance could serve it alone: in MoRI-IO's READ mode they would answer with the wrong text")
}

// BudgetSpent is what a client hears whose retry the whole proxy's bound forbids.
func BudgetSpent() *openai.Error {
	return unavailable("too many requests are being retried at the moment; try again")
}

// interrupted is what a client hears whose answer an engine gave up.
func interrupted() *openai.Error {
	return unavailable("the instance gave the request up before it had begun to answer; try again")
}

func noSocket() *openai.Error {
	return unavailable("this proxy cannot open another connection at the moment; try again")
}

func unavailable(message string) *openai.Error {
	return &openai.Error{Status: http.StatusServiceUnavailable, Type: openai.TypeUnavailable, RetryAfter: RetryWait, Message: message}
}
