package fakevllm_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/testkit/refusals"
)

// notSimulated returns the reason why the simulator answers a recorded request with another
// status than vLLM, or "".
func notSimulated(c *refusals.Case) string {
	switch {
	case strings.Contains(c.Text, "99999999999999999999") || strings.Contains(c.Text, "9223372036854775808"):
		return "integers have 64 bits"
	case strings.HasPrefix(c.Path, "/v1/messages/"), strings.HasSuffix(c.Path, "/render"),
		c.Path == "/inference/v1/generate", c.Path == "/metrics", c.Path == "/ping", c.Path == "/v1/completions/":
		return "no such route"
	}
	switch c.Name {
	case "lone surrogate", "UTF-16", "UTF-16 without a mark":
		return "text is UTF-8"
	}
	return ""
}

// refusal is an error response in any of vLLM's shapes.
type refusal struct {
	Detail json.RawMessage `json:"detail"`
	Error  json.RawMessage `json:"error"`
}

// kindOf returns the type, the param and the beginning of the message of an error response. It cuts
// the path in the param after the first field: after it, vLLM names one of several forms of the
// value. It leaves out messages of pydantic.
func kindOf(t *testing.T, body string) (kind [3]string) {
	t.Helper()
	var r refusal
	require.NoError(t, json.Unmarshal([]byte(body), &r), body)
	var e struct{ Type, Param, Message string }
	if json.Unmarshal(r.Error, &e) != nil {
		return [3]string{string(r.Error) + string(r.Detail)}
	}
	if field, ok := strings.CutPrefix(e.Param, "body."); ok {
		field, _, _ = strings.Cut(field, ".")
		e.Param = "body." + strings.TrimLeft(field, "0123456789")
	}
	kind = [3]string{e.Type, strings.TrimSuffix(e.Param, ".")}
	if words := strings.Fields(e.Message); e.Type != "Bad Request" {
		kind[2] = strings.Join(words[:min(3, len(words))], " ")
	}
	return kind
}

// TestRefusals checks that the simulator accepts and refuses the same requests as vLLM. Refusals must
// have the same status, type, param and beginning of the message.
func TestRefusals(t *testing.T) {
	t.Parallel()
	s := fakevllm.StartTest(t, fakevllm.Options{Models: []string{refusals.Model}, MaxModelLen: refusals.MaxModelLen})
	c := client(t)
	same := 0
	for _, tc := range refusals.All(t) {
		if notSimulated(&tc) != "" {
			continue
		}
		req, err := http.NewRequestWithContext(t.Context(), tc.Method, s.URL()+tc.Path, bytes.NewReader(tc.Body()))
		require.NoError(t, err)
		if tc.Type() != "" {
			req.Header.Set("Content-Type", tc.Type())
		}
		got := do(t, c, req)
		if got.status != tc.Status {
			t.Errorf("%s: %s\ngot  %d %.1200s\nwant %d %s", tc.Name, tc.Body(), got.status, got.body, tc.Status, tc.Answer)
			continue
		}
		same++
		if tc.Status < 400 || tc.Method == http.MethodHead {
			continue
		}
		kind, want := kindOf(t, got.body), kindOf(t, tc.Answer)
		switch tc.Name {
		case "message unknown part", "logprobs 21", `chat with a tool, tool_choice {"type":"function","function":{}}`:
			want[2] = kind[2] // the message differs
		}
		if kind != want {
			t.Errorf("%s: %s\ngot  %s\nwant %s", tc.Name, tc.Body(), got.body, tc.Answer)
		}
	}
	assert.GreaterOrEqual(t, same, 400, "only %d of the recorded requests have the same status", same)
}
