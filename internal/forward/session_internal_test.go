package forward

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/request"
	"github.com/pdmesh/pdmesh/test/agents"
)

// Each known header is in a recording, and all requests of a recording have the same session, whether it is
// read from the header or from the body.
func TestKnownSessionsOfRecordings(t *testing.T) {
	t.Parallel()
	list, err := agents.Recordings()
	require.NoError(t, err)
	known, seen := Sessions{Known: true}, map[string]bool{}
	for _, rec := range list {
		byHeader, byBody := map[string]bool{}, map[string]bool{}
		for _, x := range rec.Exchanges {
			for _, name := range knownSessionHeaders {
				seen[name] = seen[name] || x.Header.Get(name) != ""
			}
			byHeader[known.ofHeader(x.Header)] = true
			r, err := request.Parse(openai.KindOf(x.Path()), x.Body)
			require.NoError(t, err)
			byBody[known.ofBody(r)] = true
		}
		assert.True(t, len(byHeader) == 1 && !byHeader[""], "%s: sessions by header %v", rec.Agent, byHeader)
		// Claude Code has no field for its session.
		assert.True(t, len(byBody) == 1 && byBody[""] == (rec.Agent == "@anthropic-ai/claude-code"),
			"%s: sessions by body %v", rec.Agent, byBody)
	}
	for _, name := range knownSessionHeaders {
		assert.True(t, seen[name] && http.CanonicalHeaderKey(name) == name, "no recording has the header %s", name)
	}
}

func TestSessionsOfRequests(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", maxSession+1)
	for _, tt := range []struct {
		name, header, body, want string
		s                        Sessions
	}{
		{"none", "", `{}`, "", Sessions{Known: true}},
		{"off", "s", `{"prompt_cache_key":"b"}`, "", Sessions{}},
		{"header first", "s", `{"prompt_cache_key":"b"}`, "s", Sessions{Known: true}},
		{"escaped", "", `{"prompt_cache_key":"a\"b"}`, `a"b`, Sessions{Known: true}},
		{"last of several", "", `{"prompt_cache_key":"a","prompt_cache_key":"b"}`, "b", Sessions{Known: true}},
		{"no string", "", `{"prompt_cache_key":{"a":1}}`, "", Sessions{Known: true}},
		{"null", "", `{"prompt_cache_key":null}`, "", Sessions{Known: true}},
		{"not top-level", "", `{"metadata":{"prompt_cache_key":"b","user_id":"u"},"user":"u","safety_identifier":"u"}`, "", Sessions{Known: true}},
		{"header too long", long, `{"prompt_cache_key":"b"}`, "b", Sessions{Known: true}},
		{"body too long", "", `{"prompt_cache_key":"` + long + `"}`, "", Sessions{Known: true}},
		{"vLLM's field", "", `{"session_id":"v","prompt_cache_key":"b"}`, "v", Sessions{Known: true}},
		{"vLLM's field is empty", "", `{"session_id":"","prompt_cache_key":"b"}`, "b", Sessions{Known: true}},
		{"configured header", "s", `{"prompt_cache_key":"b"}`, "", Sessions{Header: "X-Mine"}},
	} {
		h := http.Header{}
		if tt.header != "" {
			h.Set("Session-Id", tt.header)
		}
		r, err := request.ParseOther([]byte(tt.body))
		require.NoError(t, err)
		got := tt.s.ofHeader(h)
		if got == "" {
			got = tt.s.ofBody(r)
		}
		assert.Equal(t, tt.want, got, "%s: session", tt.name)
	}
}

// plainChat returns a request without a session.
func plainChat(t testing.TB) (http.Header, *request.Request) {
	h := http.Header{}
	for _, name := range []string{"Accept", "Accept-Encoding", "Authorization", "Content-Type", "Content-Length", "User-Agent", "X-Stainless-Lang", "X-Stainless-Os", "X-Stainless-Retry-Count"} {
		h.Set(name, "value")
	}
	r, err := request.Parse(openai.Chat, []byte(`{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true}`))
	require.NoError(t, err)
	return h, r
}

func TestNoSession_NoAllocations(t *testing.T) {
	h, r := plainChat(t)
	s := Sessions{Known: true}
	assert.EqualValues(t, 0, testing.AllocsPerRun(100, func() { _ = s.ofHeader(h) + s.ofBody(r) }), "allocations")
}
