package fakevllm_test

import (
	"bytes"
	"net/http"
	"strings"
	"testing"

	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/testkit/refusals"
)

// notSimulated are the recorded requests that the simulator answers otherwise, and why;
// sameStatus reports whether only the text is another.
func notSimulated(c *refusals.Case) (why string, sameStatus bool) {
	switch {
	case strings.Contains(c.Text, "99999999999999999999") || strings.Contains(c.Text, "9223372036854775808"):
		return "integers have 64 bits", c.Status == 400
	case strings.HasPrefix(c.Path, "/v1/messages/"), strings.HasSuffix(c.Path, "/render"),
		c.Path == "/inference/v1/generate", c.Path == "/metrics", c.Path == "/ping", c.Path == "/v1/completions/":
		return "no such route", false
	}
	switch c.Name {
	case "prompt negative id", "prompt mixed", "messages of text", "message without role", "message role number", "message content number",
		"message unknown part", `vllm_xargs {"a":[{}]}`, `response_format {"type":"xml"}`, `response_format {}`, `response_format "x"`,
		`chat response_format {"type":"xml"}`, "/tokenize list", "/tokenize bad model":
		return "of a choice between forms one is told of", true
	case "lone surrogate":
		return "text is UTF-8", false
	}
	return "", true
}

// The simulator refuses what vLLM refuses, in its words, and takes what vLLM takes.
func TestRefusalsAreThoseOfVLLM(t *testing.T) {
	t.Parallel()
	s := fakevllm.StartTest(t, fakevllm.Options{Models: []string{refusals.Model}, MaxModelLen: refusals.MaxModelLen})
	c := client(t)
	same := 0
	for _, tc := range refusals.All(t) {
		req, err := http.NewRequestWithContext(t.Context(), tc.Method, s.URL()+tc.Path, bytes.NewReader(tc.Body()))
		if err != nil {
			t.Fatal(err)
		}
		if tc.Type() != "" {
			req.Header.Set("Content-Type", tc.Type())
		}
		got := do(t, c, req)
		why, sameStatus := notSimulated(&tc)
		switch {
		case why != "" && (!sameStatus || got.status == tc.Status):
			continue
		case got.status != tc.Status || tc.Status >= 400 && req.Method != http.MethodHead && got.body != tc.Answer:
			t.Errorf("%s: %s\ngot  %d %.1200s\nwant %d %s", tc.Name, tc.Body(), got.status, got.body, tc.Status, tc.Answer)
			continue
		}
		same++
	}
	if same < 380 {
		t.Errorf("only %d of the recorded answers are the simulator's too", same)
	}
}
