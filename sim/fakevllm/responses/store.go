// Package responses is what one life of an engine has stored of /v1/responses.
package responses

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/pdmesh/pdmesh/sim/fakevllm/answer"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
	"github.com/pdmesh/pdmesh/sim/fakevllm/request"
)

// Store keeps responses by their ids. A nil one is that of an engine that stores none.
type Store struct {
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

// New makes an empty one.
func New() *Store { return &Store{m: map[string]*response{}} }

func notFound(id string) *pydantic.Error {
	return &pydantic.Error{Status: http.StatusNotFound, Kind: "invalid_request_error", Param: "response_id",
		Message: fmt.Sprintf("Response with id '%s' not found.", id)}
}

// Admit lets a request go on from a stored response. Without a store, which vLLM has only
// as an option, it refuses what needs one.
func (s *Store) Admit(p *request.Request) error {
	switch {
	case s == nil && p.Background:
		return &pydantic.Error{Status: http.StatusBadRequest, Kind: "invalid_request_error", Param: "background",
			Message: "This vLLM engine does not support `store=True` and therefore does not support the background mode. " +
				"To enable these features, set the environment variable `VLLM_ENABLE_RESPONSES_API_STORE=1` when launching the vLLM server."}
	case p.Previous == "":
		return nil
	case s == nil:
		return notFound(p.Previous)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.m[p.Previous]
	if !ok {
		return notFound(p.Previous)
	}
	p.Messages = slices.Concat(r.messages, p.Messages)
	return nil
}

func (s *Store) put(id string, r *response) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.m[id]; old != nil && old.status == "cancelled" {
		return
	}
	s.m[id] = r
}

// Keep stores an answer that has ended, if the request wants it.
func (s *Store) Keep(j *answer.Reply, ln *answer.Lane, body []byte) {
	if s == nil || j.API != request.Responses || !j.Store {
		return
	}
	said := append(slices.Clone(j.Messages), request.Message{Role: "assistant", Text: string(ln.Seq.Text)})
	status := "completed"
	if ln.Seq.Finish == "length" {
		status = "incomplete"
	}
	s.put(j.ID, &response{body: bytes.Clone(body), status: status, messages: said})
}

// Queue stores what there is of an answer that is made in the background.
func (s *Store) Queue(id string, body []byte, cancel context.CancelFunc) {
	s.put(id, &response{body: body, status: "queued", cancel: cancel})
}

// Read returns the body of a response. With cancel it ends one in the background first.
func (s *Store) Read(id string, cancel bool) ([]byte, error) {
	if s == nil {
		return nil, notFound(id)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.m[id]
	switch {
	case !ok:
		return nil, notFound(id)
	case cancel && r.status != "queued":
		return nil, &pydantic.Error{Status: http.StatusBadRequest, Kind: "invalid_request_error", Param: "response_id", Message: "Cannot cancel a synchronous response."}
	case cancel:
		r.cancel()
		r.body = bytes.Replace(r.body, []byte(`"status":"queued"`), []byte(`"status":"cancelled"`), 1)
		r.status = "cancelled"
	}
	return r.body, nil
}

// Path takes the id out of the path of a stored response; ok is false for other paths.
func Path(path string) (id string, cancel, ok bool) {
	rest, ok := strings.CutPrefix(path, request.PathResponses+"/")
	id, cancel = strings.CutSuffix(rest, "/cancel")
	return id, cancel, ok && id != "" && !strings.Contains(id, "/") && id != "render"
}
