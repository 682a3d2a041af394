package forward_test

import (
	"fmt"
	"testing"

	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// TestEntry_Tokens: an entry has the tokens, the finish reason and the trace of its request, on
// all routes that generate, streamed or not, as a pair and decode-only.
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
						if a := r.post(kind.Path(), fmt.Sprintf(body, stream, more), "Traceparent", "00-"+trace+"-00f067aa0ba902b7-00"); a.status != 200 {
							t.Fatalf("%d %s", a.status, a.body)
						}
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
