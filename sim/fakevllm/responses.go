package fakevllm

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"

	"github.com/pdmesh/pdmesh/sim/fakevllm/answer"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
	"github.com/pdmesh/pdmesh/sim/fakevllm/request"
)

// responses is what one life of an engine has stored of /v1/responses.
type responses struct {
	mu sync.Mutex // guards all below
	m  map[string]*response
}

// response is one stored response.
type response struct {
	body     []byte
	status   string
	messages []request.Message  // what was said until its end
	cancel   context.CancelFunc // of one in the background
}

func noResponse(id string) *pydantic.Error {
	return &pydantic.Error{Status: http.StatusNotFound, Kind: "invalid_request_error", Param: "response_id",
		Message: fmt.Sprintf("Response with id '%s' not found.", id)}
}

// admit lets a request go on from a stored response.
func (s *responses) admit(j *job) error {
	if j.Previous == "" {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.m[j.Previous]
	if !ok {
		return noResponse(j.Previous)
	}
	j.Messages = append(append([]request.Message(nil), r.messages...), j.Messages...)
	return nil
}

func (s *responses) put(id string, r *response) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.m[id]; old != nil && old.status == "cancelled" {
		return
	}
	s.m[id] = r
}

// keep stores an answer that has ended.
func (j *job) keep(ln *answer.Lane, body []byte) {
	if j.store == nil || j.API != request.Responses || !j.Store {
		return
	}
	said := append(append([]request.Message(nil), j.Messages...), request.Message{Role: "assistant", Text: string(ln.Seq.Text)})
	status := "completed"
	if ln.Seq.Finish == "length" {
		status = "incomplete"
	}
	j.store.put(j.ID, &response{body: bytes.Clone(body), status: status, messages: said})
}

// background answers at once that the request is queued, and goes on with it.
func (x *exchange) background(j *job) {
	ctx, cancel := context.WithCancel(context.Background())
	body := append(j.AppendResponse(nil, nil, "queued"), '}')
	j.store.put(j.ID, &response{body: body, status: "queued", cancel: cancel})
	pydantic.WriteJSON(x.w, http.StatusOK, body)
	x.life.count.completed.Add(1)
	if !x.life.enter() {
		cancel()
		return
	}
	quiet := &nowhere{header: http.Header{}}
	behind := &exchange{life: x.life, w: quiet, flusher: quiet, r: x.r.WithContext(ctx), fault: x.fault, id: x.id, api: x.api, core: x.core}
	j.Stream = false
	go func() {
		defer x.life.leave()
		defer cancel()
		behind.run(j)
	}()
}

// nowhere is the client of a request in the background.
type nowhere struct{ header http.Header }

func (n *nowhere) Header() http.Header         { return n.header }
func (n *nowhere) Write(p []byte) (int, error) { return len(p), nil }
func (n *nowhere) WriteHeader(int)             {}
func (n *nowhere) FlushError() error           { return nil }

// storedPath takes the id out of the path of a stored response.
func storedPath(path string) (id string, cancel, ok bool) {
	rest, ok := strings.CutPrefix(path, request.PathResponses+"/")
	id, cancel = strings.CutSuffix(rest, "/cancel")
	return id, cancel, ok && !strings.Contains(id, "/") && id != "render"
}

func storedRoute(path string) bool {
	id, _, ok := storedPath(path)
	return ok && id != ""
}

// storedResponse serves GET of a stored response, and its cancelling.
func (x *exchange) storedResponse(path string) {
	id, cancel, _ := storedPath(path)
	s := x.life.responses
	if s == nil {
		x.reject(noResponse(id))
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.m[id]
	switch {
	case !ok:
		x.reject(noResponse(id))
		return
	case !cancel:
	case r.status != "queued" && r.status != "in_progress":
		x.reject(&pydantic.Error{Status: http.StatusBadRequest, Kind: "invalid_request_error", Param: "response_id", Message: "Cannot cancel a synchronous response."})
		return
	default:
		r.cancel()
		r.body = bytes.Replace(r.body, []byte(`"status":"queued"`), []byte(`"status":"cancelled"`), 1)
		r.status = "cancelled"
	}
	pydantic.WriteJSON(x.w, http.StatusOK, r.body)
}

// admitStored refuses what needs a store of responses, which vLLM has only when it is
// told to.
func (j *job) admitStored() error {
	s := j.store
	switch {
	case s != nil:
		return s.admit(j)
	case j.Background:
		return &pydantic.Error{Status: http.StatusBadRequest, Kind: "invalid_request_error", Param: "background",
			Message: "This vLLM engine does not support `store=True` and therefore does not support the background mode. " +
				"To enable these features, set the environment variable `VLLM_ENABLE_RESPONSES_API_STORE=1` when launching the vLLM server."}
	case j.Previous != "":
		return noResponse(j.Previous)
	}
	return nil
}
