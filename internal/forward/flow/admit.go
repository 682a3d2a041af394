package flow

import (
	"errors"
	"net/http"
	"time"

	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/request"
	"github.com/pdmesh/pdmesh/internal/sched/admission"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
)

// maxRetryAfter is the longest Retry-After that client libraries obey.
const maxRetryAfter = time.Minute

// admit waits until the engines of the request's target have capacity for it, unless it has
// already waited for that target. If admit returns false, this model does not serve the
// request: the request has been answered, or r.again is true.
func (r *Request) admit(media bool) bool {
	a, w := &r.Admission, &r.attempts.wanted
	queue := r.Origin.Model
	if r.choice != nil {
		queue = r.choice.Target.Queue
	}
	if r.Settings.Queue == nil || a.Placed() && a.Queue == queue {
		return true
	}
	a.Release() // the slot in the queue of an earlier target of the model route
	a.Queue, a.Model, a.Labels, a.Bytes, a.Cache = queue, w.Model, w.Labels, int64(w.Length), r
	if !media { // the number of tokens of an image does not follow from its bytes
		a.Prompt = len(w.Prompt)
		for _, h := range w.Head {
			a.Prompt += len(h)
		}
	}
	err := r.Settings.Queue.Admit(r.Origin.Client, a)
	if err != nil {
		r.answerNotAdmitted(err)
	}
	return err == nil
}

// busyFailed answers with the failure of a leg. If the request may be sent again later, it
// leaves that to waitBusy, which runs after the picks of this attempt are released.
func (r *Request) busyFailed(f *leg.Failure) {
	if f.Class == leg.Busy && !r.Route.answered && r.Admission.Placed() {
		r.busy = f
		return
	}
	r.Answer.SendFailure(f)
}

// waitBusy waits until a request that engines refused as busy may be sent again, starting
// with the first target of its model route. If it may not, waitBusy answers it.
func (r *Request) waitBusy() {
	f := r.busy
	r.busy = nil
	again, err := r.Settings.Queue.Again(r.Origin.Client, &r.Admission)
	switch r.again = again; {
	case err != nil:
		r.answerNotAdmitted(err)
	case !again:
		r.Answer.SendFailure(f)
	case r.choice != nil:
		r.choice.Restart()
		r.nextTarget()
	}
}

// answerNotAdmitted answers a request that was not admitted, unless another target of its
// model route takes it over.
func (r *Request) answerNotAdmitted(err error) {
	var refused *admission.RefusedError
	if !errors.As(err, &refused) {
		r.Answer.ClientGone()
		return
	}
	if refused.Reason != admission.ReasonStopping && r.fallsOver(true) {
		return
	}
	refused.Count(r.Admission.Class)
	r.Route.Refused = refused.Reason
	if refused.Wait > maxRetryAfter {
		r.Answer.StopKeepAlive() // keep-alives use the same header map
		r.Answer.Client.Header().Set("X-Should-Retry", "false")
	}
	r.Answer.Refuse(notAdmitted(refused))
}

// Cached implements admission.Cache with a pick that is not used.
func (r *Request) Cached() (tokens int, known bool) {
	w := r.attempts.wanted
	w.Role, w.Tentative = instance.Prefill, true
	a, err := r.Settings.Picker.Pick(w)
	if err != nil {
		return 0, false
	}
	defer a.Done()
	return a.Cached, policy.KnowsCaches(a.Policy)
}

// The label of instances whose engine orders its queue by priority. Other engines refuse any priority
// but 0.
const labelScheduling, schedulesByPriority = "scheduling_policy", "priority"

// reqFor returns the request for a leg to this instance, with the priority of its class if
// the engine schedules by priority.
func (c *completion) reqFor(in *instance.Instance) *request.Request {
	c.req.Priority = ""
	if c.s.Queue.Mode() == admission.On && in.Record.Labels[labelScheduling] == schedulesByPriority {
		c.req.Priority = c.r.Admission.Class.EnginePriority()
	}
	return c.req
}

// notAdmitted returns the answer to a request that is not admitted.
func notAdmitted(r *admission.RefusedError) *openai.Error {
	e := &openai.Error{Status: http.StatusTooManyRequests, Type: openai.TypeRateLimit, RetryAfter: r.Wait}
	switch r.Reason {
	case admission.ReasonStopping:
		e.Status, e.Type, e.RetryAfter = http.StatusServiceUnavailable, openai.TypeUnavailable, leg.RetryWait
		e.Message = "this proxy is stopping"
	case admission.ReasonFull:
		e.Message = "all instances are busy, and too many requests wait for them"
	case admission.ReasonDeadline:
		e.Message = "all instances were busy until the deadline of the request"
	default:
		e.Message = "all instances are busy, and the request would be answered too late"
	}
	e.Message += " (" + r.Reason + ")"
	return e
}

// endAdmission releases the request's slot and reports the tokens that it used.
func (r *Request) endAdmission() {
	if !r.Answer.Computed() {
		r.Admission.Release()
		return
	}
	t := &r.Answer.Tokens
	r.Admission.Done(t.Input, t.Input-t.Cached, t.Output)
}
