package fakevllm_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

const streamed = `{"prompt":"x","max_tokens":6,"ignore_eos":true,"stream":true}`

// TestFaults checks every kind at every stage over a raw connection.
func TestFaults(t *testing.T) {
	t.Parallel()
	const headers, piece, done = "HTTP/1.1 200 OK", `"text":`, "data: [DONE]"
	for _, tt := range []struct {
		name   string
		f      fakevllm.Fault
		body   string // default streamed
		reset  bool   // the end is RST
		closed bool   // the end is FIN; with neither the connection stays open
		status string // first line, "" for nothing at all
		pieces int
		has    string
		lacks  string
	}{
		{name: "none", f: fakevllm.Fault{Kind: fakevllm.FaultStatus, Path: "/other"}, status: headers, pieces: 6, has: done},
		{name: "status", f: fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: 429, Body: "later", Header: map[string]string{"Retry-After": "7"}}, status: "HTTP/1.1 429 Too Many Requests", has: "Retry-After: 7", lacks: done},
		{name: "status default", f: fakevllm.Fault{Kind: fakevllm.FaultStatus}, status: "HTTP/1.1 500 Internal Server Error", has: `"code":500`, lacks: done},
		{name: "reset before reading", f: fakevllm.Fault{Kind: fakevllm.FaultReset, At: fakevllm.BeforeRead}, reset: true},
		{name: "reset after reading", f: fakevllm.Fault{Kind: fakevllm.FaultReset}, reset: true},
		{name: "reset after headers", f: fakevllm.Fault{Kind: fakevllm.FaultReset, At: fakevllm.AfterHeaders}, reset: true, status: headers, lacks: piece},
		{name: "reset after 3 tokens", f: fakevllm.Fault{Kind: fakevllm.FaultReset, Tokens: 3}, reset: true, status: headers, pieces: 3, lacks: done},
		{name: "close", f: fakevllm.Fault{Kind: fakevllm.FaultClose}, closed: true},
		{name: "close after headers", f: fakevllm.Fault{Kind: fakevllm.FaultClose, At: fakevllm.AfterHeaders}, closed: true, status: headers, lacks: "\r\n0\r\n"},
		{name: "truncated after 2 tokens", f: fakevllm.Fault{Kind: fakevllm.FaultClose, Tokens: 2}, closed: true, status: headers, pieces: 2, lacks: "\r\n0\r\n"},
		{name: "error event after role", f: fakevllm.Fault{Kind: fakevllm.FaultErrorEvent}, status: headers, has: `{"error": {"message": "Internal server error"`},
		{name: "error event after 2 tokens", f: fakevllm.Fault{Kind: fakevllm.FaultErrorEvent, Tokens: 2}, status: headers, pieces: 2, has: `{"error": {`},
		{name: "garbage", f: fakevllm.Fault{Kind: fakevllm.FaultGarbage}, closed: true, status: "\x16\x03\x01 this is no HTTP \xff"},
		{name: "garbage after a token", f: fakevllm.Fault{Kind: fakevllm.FaultGarbage, Tokens: 1}, status: headers, pieces: 1, has: "\xff\xfe garbage", lacks: done},
		{name: "die", f: fakevllm.Fault{Kind: fakevllm.FaultDie, Tokens: 1}, reset: true, status: headers},
		{name: "response reset after headers", body: `{"prompt":"x"}`, f: fakevllm.Fault{Kind: fakevllm.FaultReset, At: fakevllm.AfterHeaders}, reset: true, status: headers, lacks: `"text"`},
		{name: "response truncated", body: `{"prompt":"x"}`, f: fakevllm.Fault{Kind: fakevllm.FaultClose, Tokens: 2}, closed: true, status: headers, has: `{"id":"cmpl-R"`, lacks: "kv_transfer_params"},
		{name: "response of an error event", body: `{"prompt":"x"}`, f: fakevllm.Fault{Kind: fakevllm.FaultErrorEvent}, status: "HTTP/1.1 500 Internal Server Error", has: "InternalServerError"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := fakevllm.StartTest(t, fakevllm.Options{IdleTimeout: 50 * time.Millisecond})
			require.NoError(t, s.Script(tt.f))
			body := tt.body
			if body == "" {
				body = streamed
			}
			r := dialRaw(t, s)
			r.send(t, "/v1/completions", "R", body)
			// An open connection ends with FIN at the idle timeout, after the
			// whole answer; a cut one ends within the answer.
			got, err := r.rest()
			line, _, _ := strings.Cut(got, "\r\n")
			if tt.reset != errors.Is(err, syscall.ECONNRESET) || !tt.reset && err != nil {
				t.Errorf("the connection ended with %v after %q", err, got)
			}
			if line != tt.status && (!tt.reset || got != "") {
				t.Errorf("first line %q, not %q", line, tt.status)
			}
			if n := strings.Count(got, piece); tt.body == "" && !tt.reset && n != tt.pieces {
				t.Errorf("%d tokens, not %d", n, tt.pieces)
			}
			if tt.has != "" && !strings.Contains(got, tt.has) || tt.lacks != "" && strings.Contains(got, tt.lacks) {
				t.Errorf("expected %q and no %q in %q", tt.has, tt.lacks, got)
			}
			if fired := s.Counters().Faults; tt.f.Path == "" && fired != 1 {
				t.Errorf("%d faults counted", fired)
			}
		})
	}
}

// TestHangs: the engine sends nothing more, and notices when the client disconnects.
func TestHangs(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		f    fakevllm.Fault
		mark string // received before the hang
	}{
		{"before headers", fakevllm.Fault{Kind: fakevllm.FaultHang}, ""},
		{"after headers", fakevllm.Fault{Kind: fakevllm.FaultHang, At: fakevllm.AfterHeaders}, "\r\n\r\n"},
		{"after the role", fakevllm.Fault{Kind: fakevllm.FaultHang, At: fakevllm.AfterRole}, `"role":"assistant"`},
		{"after 3 tokens", fakevllm.Fault{Kind: fakevllm.FaultHang, Tokens: 3}, `"token_ids":null}]}` + "\n\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := fakevllm.StartTest(t, fakevllm.Options{})
			require.NoError(t, s.Script(tt.f))
			r := dialRaw(t, s)
			r.send(t, "/v1/chat/completions", "R", `{`+user+`,"stream":true,"ignore_eos":true,"max_tokens":9}`)
			if tt.mark != "" {
				r.until(t, tt.mark)
			}
			require.NoError(t, r.conn.SetReadDeadline(time.Now().Add(30*time.Millisecond)))
			if _, err := io.ReadAll(r.in); !isTimeout(err) {
				t.Errorf("the connection ended: %v", err)
			}
			_ = r.conn.Close()
			eventually(t, func() error { return want("aborted", s.Counters().Aborted, 1) })
		})
	}
	t.Run("ends with the engine", func(t *testing.T) {
		t.Parallel()
		s := fakevllm.StartTest(t, fakevllm.Options{})
		require.NoError(t, s.Script(fakevllm.Fault{Kind: fakevllm.FaultHang, At: fakevllm.AfterHeaders}))
		r := dialRaw(t, s)
		r.send(t, "/v1/completions", "R", streamed)
		r.until(t, "\r\n\r\n")
		s.Close()
		assert.EqualValues(t, 0, s.Counters().Aborted, "aborts counted although the engine died")
	})
}

func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}

func TestSlowAndNoKV(t *testing.T) {
	t.Parallel()
	p, _ := pair(t, fakevllm.Options{}, fakevllm.Options{})
	require.NoError(t, p.Script(fakevllm.Fault{Kind: fakevllm.FaultNoKV, Times: 1}, fakevllm.Fault{Kind: fakevllm.FaultSlow, TTFT: time.Hour}))
	body := `{"prompt":"x","max_tokens":1,"kv_transfer_params":` + prefillForm + `}`
	if r := decode(t, post(t, client(t), p.URL()+"/v1/completions", "R", body)); string(r.KV) != "null" {
		t.Errorf("kv_transfer_params is %s", r.KV)
	}
	r := dialRaw(t, p)
	r.send(t, "/v1/completions", "R", body)
	eventually(t, func() error { return want("running", p.Counters().Running, 1) })
	p.ClearFaults() // does not end a fault that a request already has
	got := p.Counters()
	assert.True(t, got.Running == 1 && got.TransfersMade == 0, "%+v", got)
	if r := decode(t, post(t, client(t), p.URL()+"/v1/completions", "S", body)); string(r.KV) == "null" {
		t.Error("no transfer params after the faults were cleared")
	}
}

func TestAdminRoutes(t *testing.T) {
	t.Parallel()
	s := fakevllm.StartTest(t, fakevllm.Options{Admin: true, APIKey: "k", Role: fakevllm.RoleDecode})
	c := client(t)
	for _, tt := range []struct {
		name, body string
		status     int
	}{
		{"one", `{"kind":"status","path":"/health","status":503,"times":1}`, 204},
		{"list", `[{"kind":"slow","ttft":"5ms","itl":"1us","path":"/x"},{"kind":"hang","at":"after_role","path":"/x"}]`, 204},
		{"unknown field", `{"kind":"hang","whenever":1}`, 400},
		{"unknown kind", `{"kind":"sulk"}`, 400},
		{"bad duration", `{"kind":"slow","ttft":"soon"}`, 400},
		{"no JSON", `hang`, 400},
		{"two values", `{"kind":"hang"} {}`, 400},
	} {
		r := post(t, c, s.URL()+"/fake/faults", "", tt.body)
		assert.Equal(t, tt.status, r.status, "%s: %s", tt.name, r.body)
	}
	a, b := get(t, c, s.URL()+"/health").status, get(t, c, s.URL()+"/health").status
	assert.True(t, a == 503 && b == 200, "health is %d, %d", a, b)
	var state fakevllm.State
	require.NoError(t, json.Unmarshal([]byte(get(t, c, s.URL()+"/fake/state").body), &state))
	assert.True(t, state.EngineID == s.EngineID() && state.Role == fakevllm.RoleDecode && state.Counters.Faults == 1,
		"state is %+v", state)
	if r := post(t, c, s.URL()+"/fake/faults", "", `{"kind":"status","path":"/health","status":503}`); r.status != 204 || get(t, c, s.URL()+"/health").status != 503 {
		t.Errorf("%d, or it does not happen", r.status)
	}
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodDelete, s.URL()+"/fake/faults", nil)
	if r := do(t, c, req); r.status != 204 || get(t, c, s.URL()+"/health").status != 200 {
		t.Errorf("%d, or it still happens", r.status)
	}
	if r := get(t, c, s.URL()+"/fake/faults"); r.status != 405 {
		t.Errorf("status of GET: %d", r.status)
	}
	for _, r := range s.Requests() {
		assert.False(t, strings.HasPrefix(r.Path, "/fake/"), "admin requests are recorded")
	}
}
