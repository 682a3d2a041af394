package flow

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"

	"github.com/pdmesh/pdmesh/internal/cli/sleep"
	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/internal/forward/relay"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/splice"
	"github.com/pdmesh/pdmesh/internal/sched"
)

// Stored passes a request about a stored response to the instances that may have it.
// target is the path with its query.
func (r *Request) Stored(id, method, target string) {
	if strings.Contains(id, "?") { // in target it would begin the query, and name another response
		r.Answer.Refuse(noResponse(id))
		return
	}
	r.begin(sched.Request{})
	r.askHolders(id, func(a *sched.Assignment) *leg.Failure {
		l := r.Origin.Begin(a, r.Settings.answerWait(false))
		defer l.End()
		header := r.plainHeader(a)
		if method == http.MethodGet {
			header = header.Without("Content-Type")
		}
		return r.relayOn(l, method, target, header, splice.Body{}, relay.HideTransferParams(openai.Responses))
	})
}

// askHolders queries the instances that may have a response, one after another, until one has
// answered the client. An id that a proxy made names the instance; for any other id each
// decode instance is queried.
func (r *Request) askHolders(id string, ask func(*sched.Assignment) *leg.Failure) {
	list := r.Settings.mayHold(id)
	var notFound, failed *leg.Failure
	for round := 0; round < 2 && len(list) > 0; round++ {
		var again []*instance.Instance
		for _, in := range list {
			f, done := r.askHolder(in, ask)
			switch {
			case done:
				return
			case f == nil: // the instance has left
			case f.Answer.Status == http.StatusNotFound && f.Answer.Own == nil:
				// The 404 of an instance without the model or the route is not about the response.
				if notFound == nil || in.ServesModel(r.Origin.Model) && string(f.Answer.Body) != leg.NoSuchRoute {
					notFound = f
				}
			case !f.Rule.Retry:
				r.Answer.SendFailure(f)
				return
			default:
				failed = f
				if !f.Class.TimedOut() {
					again = append(again, in)
				}
			}
		}
		if list = again; len(list) > 0 && round == 0 && !pauseBeforeRetry(r.Origin.Client) {
			r.Answer.ClientGone()
			return
		}
	}
	switch {
	case failed != nil: // this instance may have the response
		r.busyFailed(failed)
	case notFound != nil:
		r.Answer.SendFailure(notFound)
	case r.Settings.Picker.Members().Revision == 0:
		r.Answer.Refuse(leg.MembershipUnread())
	default:
		r.Answer.Refuse(noResponse(id))
	}
}

// askHolder queries one instance. done reports whether the client has been answered.
func (r *Request) askHolder(in *instance.Instance, ask func(*sched.Assignment) *leg.Failure) (f *leg.Failure, done bool) {
	a, err := r.Settings.Picker.Take(in)
	if err != nil {
		return nil, false
	}
	defer a.Done()
	r.notePick(a)
	if f = ask(a); f == nil {
		return nil, true
	}
	if f.Class == leg.ClientGone || r.Origin.Client.Err() != nil {
		r.Answer.SendFailure(f)
		return f, true
	}
	if f.Answer.Status == http.StatusNotFound {
		f.Class, f.Rule = leg.Status4xx, leg.Status4xx.Rule() // it has no such response, even if it lists the model
	}
	r.note(a, f)
	return f, false
}

// pauseBeforeRetry waits before instances that failed are queried again. It returns false if the
// client has left.
func pauseBeforeRetry(client context.Context) bool {
	return sleep.For(client, secondRoundWait/2+rand.N(secondRoundWait))
}

// mayHold returns the decode instances that may have a response, ejected ones last.
// Draining instances still have their responses.
func (s *Settings) mayHold(id string) []*instance.Instance {
	var list, out []*instance.Instance
	for _, in := range s.Picker.Members().All() {
		switch {
		case in.Role != instance.Decode, in.Intent == instance.Removed:
		case !mayStore(in.View):
		case !openai.MayHold(in.Address, id):
		case s.Health.Available(in.Key) && in.View != instance.Ejected:
			list = append(list, in)
		default:
			out = append(out, in)
		}
	}
	return append(list, out...)
}

// mayStore reports whether an instance with this view may have stored a response. An
// instance that this proxy has not verified yet may have done so for another proxy.
func mayStore(v instance.View) bool {
	switch v {
	case "", instance.Orphan, instance.Ejected, instance.Unverified:
		return true
	}
	return false
}

// noResponse returns vLLM's answer about a response that the engine does not have.
func noResponse(id string) *openai.Error {
	return &openai.Error{Status: http.StatusNotFound, Type: "invalid_request_error", Param: "response_id",
		Message: fmt.Sprintf("Response with id '%s' not found.", id)}
}
