package forward

import (
	"cmp"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/pdmesh/pdmesh/internal/forward/modelroute"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/request"
)

// Explain answers with the instances that would serve a request with this body, and with the reasons. The
// query parameter endpoint names the route. Explain sends nothing to an engine and counts nothing.
func (h *Handler) Explain(w http.ResponseWriter, r *http.Request) {
	endpoint := cmp.Or(r.URL.Query().Get("endpoint"), openai.Chat.Path())
	kind := openai.KindOf(endpoint)
	if kind == openai.Other {
		openai.WriteError(w, openai.BadRequest("endpoint", "endpoint is the path of a route that goes through prefill and decode, such as /v1/chat/completions"))
		return
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(h.opts.BodyTimeout)) // not supported: no deadline
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, h.opts.MaxBody))
	var over *http.MaxBytesError
	switch {
	case errors.As(err, &over):
		openai.WriteError(w, tooLarge(h.opts.MaxBody))
		return
	case err != nil:
		openai.WriteError(w, openai.BadRequest("", "the request body could not be read: "+err.Error()))
		return
	}
	_ = control.SetReadDeadline(time.Time{})
	req, err := request.Parse(kind, body)
	if invalid, ok := errors.AsType[*openai.Error](err); ok {
		openai.WriteError(w, invalid)
		return
	}
	session := cmp.Or(h.opts.Sessions.ofHeader(r.Header), h.opts.Sessions.ofBody(req))
	var choice *modelroute.Choice
	if route := h.routeOf(req.Model); route != nil {
		choice = route.Preview(session, h.opts.KeyName(r))
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(openai.Marshal(h.flow.Explain(req, session, choice)), '\n')) // the client may have left
}
