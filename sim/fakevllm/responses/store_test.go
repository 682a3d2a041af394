package responses_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/fakevllm/answer"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
	"github.com/pdmesh/pdmesh/sim/fakevllm/request"
	"github.com/pdmesh/pdmesh/sim/fakevllm/responses"
)

func reply(id string) *answer.Reply {
	return &answer.Reply{ID: id, Request: &request.Request{API: request.Responses, Store: true, Messages: []request.Message{{Role: "user", Text: "hi"}}}}
}

// A conversation goes on from an answer that was kept, and from no other.
func TestConversationContinues(t *testing.T) {
	t.Parallel()
	s := responses.New()
	ln := new(answer.Lane)
	ln.Seq.Text = []byte("hello")
	s.Keep(reply("a"), ln, []byte(`{"id":"a"}`))
	unkept := reply("b")
	unkept.Store = false
	s.Keep(unkept, ln, []byte(`{"id":"b"}`))
	next := &request.Request{Previous: "a", Messages: []request.Message{{Role: "user", Text: "and?"}}}
	require.NoError(t, s.Admit(next))
	var said []string
	for _, m := range next.Messages {
		said = append(said, m.Role+" "+m.Text)
	}
	assert.Equal(t, "user hi; assistant hello; user and?", strings.Join(said, "; "), "the conversation")
	if err := s.Admit(&request.Request{Previous: "b"}); status(err) != http.StatusNotFound {
		t.Errorf("one that was not kept: %v", err)
	}
	body, e := s.Read("a", false)
	assert.True(t, e == nil && string(body) == `{"id":"a"}`, "%s %v", body, e)
	if _, e := s.Read("a", true); e == nil || pydantic.AsError(e).Status != http.StatusBadRequest {
		t.Errorf("an answer that has ended was cancelled: %v", e)
	}
}

// What was cancelled stays so, whatever the engine makes of it later.
func TestCancel(t *testing.T) {
	t.Parallel()
	s := responses.New()
	cancelled := false
	s.Queue("a", []byte(`{"status":"queued"}`), func() { cancelled = true })
	body, e := s.Read("a", true)
	assert.True(t, e == nil && string(body) == `{"status":"cancelled"}` && cancelled, "%s %v", body, e)
	s.Keep(reply("a"), new(answer.Lane), []byte(`{"status":"completed"}`))
	if body, _ := s.Read("a", false); string(body) != `{"status":"cancelled"}` {
		t.Errorf("afterwards it is %s", body)
	}
}

// An engine without a store refuses what needs one.
func TestNoStore(t *testing.T) {
	t.Parallel()
	var s *responses.Store
	s.Keep(reply("a"), new(answer.Lane), nil)
	if _, e := s.Read("a", false); e == nil || pydantic.AsError(e).Status != http.StatusNotFound {
		t.Errorf("get: %v", e)
	}
	for _, tt := range []struct {
		p    request.Request
		want int
	}{
		{request.Request{}, 0},
		{request.Request{Background: true}, http.StatusBadRequest},
		{request.Request{Previous: "a"}, http.StatusNotFound},
	} {
		if err := s.Admit(&tt.p); status(err) != tt.want {
			t.Errorf("%+v: %v", tt.p, err)
		}
	}
}

func status(err error) int {
	if err == nil {
		return 0
	}
	return pydantic.AsError(err).Status
}

func TestPath(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]struct {
		id         string
		cancel, ok bool
	}{
		"/v1/responses/a":        {"a", false, true},
		"/v1/responses/a/cancel": {"a", true, true},
		"/v1/responses/render":   {"render", false, false},
		"/v1/responses/":         {"", false, false},
		"/v1/responses/a/b":      {"a/b", false, false},
	} {
		if id, cancel, ok := responses.Path(path); id != want.id || cancel != want.cancel || ok != want.ok {
			t.Errorf("%s: %q %v %v", path, id, cancel, ok)
		}
	}
}
