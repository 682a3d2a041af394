package forward

import (
	"errors"
	"net/http"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/internal/upstream"
)

// Passthrough serves an endpoint that one instance answers alone: a decode
// instance, or a prefill instance where there is none.
func (h *Handler) Passthrough(endpoint string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		x := h.newExchange(w, r, endpoint)
		x.passthrough()
		x.finish()
	}
}

func (x *exchange) passthrough() {
	body, ok := x.readBody()
	if !ok {
		return
	}
	req, err := openai.ParseOther(body)
	if err != nil {
		x.invalid(body, err)
		return
	}
	req.KeepPriority = req.Raw(openai.FieldPriority) != nil && x.h.opts.Privileged(x.r)
	x.model, x.entry.Model, x.entry.Stream = req.Model, req.Model, req.Stream
	leg := req.NewEdit().Body()
	for {
		a, err := x.pickAny()
		if err != nil {
			x.withoutAny(err)
			return
		}
		f := x.passOn(a, leg)
		a.Done()
		if f == nil {
			return
		}
		if !x.note(a.Instance, f) {
			x.tell(f)
			return
		}
	}
}

func (x *exchange) pickAny() (*sched.Assignment, error) {
	a, err := x.pick(instance.Decode, nil)
	if !errors.Is(err, sched.ErrNone) {
		return a, err
	}
	return x.h.opts.Picker.Pick(sched.Request{
		Role: instance.Prefill, Model: x.model, Alone: true, Session: x.session(), Tried: x.tried.prefill,
	})
}

func (x *exchange) withoutAny(err error) {
	switch {
	case x.ctx.Err() != nil:
		x.gone()
	case errors.Is(err, sched.ErrUnknownModel):
		x.refuse(x.unknownModel(x.model))
	case x.last != nil:
		x.tell(x.last)
	default:
		x.refuse(unpicked(err, instance.Decode, x.model))
	}
}

// notePick notes who answers alone.
func (x *exchange) notePick(a *sched.Assignment) {
	x.entry.Revision = a.Revision
	if a.Instance.Role == instance.Prefill {
		x.entry.Prefill = a.Instance.Address
	} else {
		x.entry.Decode = a.Instance.Address
	}
}

func (x *exchange) passOn(a *sched.Assignment, leg openai.Body) *failure {
	x.notePick(a)
	path := x.r.URL.Path
	if q := x.r.URL.RawQuery; q != "" {
		path += "?" + q
	}
	w := wait{limit: x.h.opts.NonStream, cause: errFirstByteTimeout, silence: x.h.opts.FirstByte}
	if x.entry.Stream {
		w.limit = x.h.opts.FirstByte
	}
	l := x.begin(a, w)
	defer l.end()
	l.request = upstream.Request{
		Instance: a.Instance, Method: x.r.Method, Path: path,
		Header: x.legHeader(x.engineID()), Body: leg.Segments(),
	}
	resp, err := x.do(l)
	if err != nil {
		return x.ofExchange(a.Instance, err)
	}
	a.Heard()
	defer func() { _ = resp.Body.Close() }()
	if resp.Status != http.StatusOK {
		return x.errorAnswer(l, a.Instance, resp)
	}
	l.next(x.h.opts.Idle, errIdleTimeout)
	if isEventStream(resp.Header) {
		return x.stream(l, a, nil, resp, true)
	}
	return x.whole(l, a, resp)
}
