package forward_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// An entry has the tokens, the finish reason and the trace of its request, on all routes that generate,
// streamed or not, as a pair and decode-only.
func TestEntry_Tokens(t *testing.T) {
	t.Parallel()
	const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
	bodies := map[openai.Kind]string{
		openai.Completion: `{"model":"m","prompt":"once upon a time","max_tokens":7,"stream":%t%s}`,
		openai.Chat:       `{"model":"m","messages":[{"role":"user","content":"once upon a time"}],"max_tokens":7,"stream":%t%s}`,
		openai.Responses:  `{"model":"m","input":"once upon a time","max_output_tokens":7,"stream":%t%s}`,
		openai.Messages:   `{"model":"m","messages":[{"role":"user","content":"once upon a time"}],"max_tokens":7,"stream":%t%s}`,
	}
	finish := map[openai.Kind]string{openai.Completion: "length", openai.Chat: "length", openai.Responses: "max_output_tokens", openai.Messages: "max_tokens"}
	for kind, body := range bodies {
		for _, stream := range []bool{true, false} {
			for _, prefills := range []int{0, 1} {
				for _, more := range []string{"", `,"stream_options":{"include_usage":true}`} {
					if more != "" && (!stream || kind != openai.Completion && kind != openai.Chat) {
						continue
					}
					t.Run(fmt.Sprintf("%s/stream=%t/prefills=%d/%s", kind.Path(), stream, prefills, more), func(t *testing.T) {
						t.Parallel()
						r := start(t, fakevllm.NIXL, prefills, 1, nil)
						a := r.post(kind.Path(), fmt.Sprintf(body, stream, more), "Traceparent", "00-"+trace+"-00f067aa0ba902b7-00")
						require.Equal(t, 200, a.status, "%s", a.body)
						e := r.entry()
						known := prefills > 0 || more != "" || !stream || kind == openai.Responses || kind == openai.Messages
						if (e.Input > 0) != known || e.Output != 7 || e.Finish != finish[kind] || e.TraceID != trace {
							t.Errorf("%d input tokens (known: %t), %d output tokens, finish reason %q, trace %q", e.Input, known, e.Output, e.Finish, e.TraceID)
						}
					})
				}
			}
		}
	}
}

// An entry has the tokens of a request that one instance answers, on a route that generates.
func TestEntry_TokensOfOneInstance(t *testing.T) {
	t.Parallel()
	const whole = `{"choices":[{"index":0}],"usage":{"prompt_tokens":9,"completion_tokens":5}}`
	for _, c := range []struct {
		path, contentType, body string
		input, output           int
	}{
		{"/v1/chat/completions/batch", "application/json", whole, 9, 5},
		{"/cohere/v2/chat", "text/event-stream", "data: {\"type\":\"content-delta\"}\n\ndata: {\"type\":\"content-delta\"}\n\n", 0, 2},
		{"/v1/embeddings", "application/json", whole, 0, 0},
	} {
		r := start(t, fakevllm.Plain, 0, 0, nil)
		one, _ := wireEngine(t, instance.Decode, fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s", c.contentType, len(c.body), c.body))
		r.withEngine(one, false)
		a := r.post(c.path, `{"model":"m"}`)
		assert.True(t, a.status == http.StatusOK && string(a.body) == c.body, "%s: %d %s", c.path, a.status, a.body)
		if e := r.entry(); e.Input != c.input || e.Output != c.output {
			t.Errorf("%s: %d and %d tokens, want %d and %d", c.path, e.Input, e.Output, c.input, c.output)
		}
	}
}
