// Package responses is what one life of an engine has stored of /v1/responses.
package responses

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
	p.Messages = append(append([]request.Message(nil), r.messages...), p.Messages...)
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
	said := append(append([]request.Message(nil), j.Messages...), request.Message{Role: "assistant", Text: string(ln.Seq.Text)})
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

// Get is the body of a response.
func (s *Store) Get(id string) ([]byte, *pydantic.Error) {
	return s.read(id, func(*response) *pydantic.Error { return nil })
}

// Cancel ends one in the background, and returns its body.
func (s *Store) Cancel(id string) ([]byte, *pydantic.Error) {
	return s.read(id, func(r *response) *pydantic.Error {
		if r.status != "queued" && r.status != "in_progress" {
			return &pydantic.Error{Status: http.StatusBadRequest, Kind: "invalid_request_error", Param: "response_id", Message: "Cannot cancel a synchronous response."}
		}
		r.cancel()
		r.body = bytes.Replace(r.body, []byte(`"status":"queued"`), []byte(`"status":"cancelled"`), 1)
		r.status = "cancelled"
		return nil
	})
}

func (s *Store) read(id string, change func(*response) *pydantic.Error) ([]byte, *pydantic.Error) {
	if s == nil {
		return nil, notFound(id)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.m[id]
	if !ok {
		return nil, notFound(id)
	}
	if e := change(r); e != nil {
		return nil, e
	}
	return r.body, nil
}

// Path takes the id out of the path of a stored response; ok is false for other paths.
func Path(path string) (id string, cancel, ok bool) {
	rest, ok := strings.CutPrefix(path, request.PathResponses+"/")
	id, cancel = strings.CutSuffix(rest, "/cancel")
	return id, cancel, ok && id != "" && !strings.Contains(id, "/") && id != "render"
}
