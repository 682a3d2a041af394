package sse_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/sse"
)

func TestClassify(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, event string
		class       sse.EventClass
		code        int
	}{
		{"comment", ": ping\n\n", sse.EventPreamble, 0},
		{"empty", "\n", sse.EventPreamble, 0},
		{"role chunk", `data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}` + "\n\n", sse.EventPreamble, 0},
		{"role chunk with null content", `data: {"choices":[{"delta":{"role":"assistant","content":null,"tool_calls":[]}}]}` + "\n\n", sse.EventPreamble, 0},
		{"content", `data: {"choices":[{"delta":{"content":"a"}}]}` + "\n\n", sse.EventContent, 0},
		{"content of a second choice", `data: {"choices":[{"delta":{"content":""}},{"delta":{"content":"a"}}]}` + "\n\n", sse.EventContent, 0},
		{"tool call", `data: {"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}` + "\n\n", sse.EventContent, 0},
		{"reasoning", `data: {"choices":[{"delta":{"reasoning_content":"hm"}}]}` + "\n\n", sse.EventContent, 0},
		{"refusal", `data: {"choices":[{"delta":{"refusal":"no"}}]}` + "\n\n", sse.EventContent, 0},
		{"finish without content", `data: {"choices":[{"delta":{},"finish_reason":"stop"}]}` + "\n\n", sse.EventContent, 0},
		{"completion text", `data: {"choices":[{"text":" a","finish_reason":null}]}` + "\r\n\r\n", sse.EventContent, 0},
		{"empty completion text", `data: {"choices":[{"text":"","finish_reason":null}]}` + "\n\n", sse.EventPreamble, 0},
		{"usage only", `data: {"choices":[],"usage":{"total_tokens":3}}` + "\n\n", sse.EventPreamble, 0},
		{"done", "data: [DONE]\n\n", sse.EventDone, 0},
		{"done without space", "data:[DONE]\n\n", sse.EventDone, 0},
		{"error", `data: {"error":{"message":"x","type":"InternalServerError","param":null,"code":500}}` + "\n\n", sse.EventError, 500},
		{"error with a code as text", `data: {"error":{"code":"400"}}` + "\n\n", sse.EventError, 400},
		{"error without a code", `data: {"error":"x"}` + "\n\n", sse.EventError, 0},
		{"flat error", `data: {"object":"error","message":"x","code":400}` + "\n\n", sse.EventError, 400},
		{"null error", `data: {"error":null,"choices":[{"delta":{"content":"a"}}]}` + "\n\n", sse.EventContent, 0},
		{"the word in a text", `data: {"choices":[{"delta":{"content":"{\"error\":1}"}}]}` + "\n\n", sse.EventContent, 0},
		{"what we cannot read passes", "data: {broken\n\n", sse.EventContent, 0},
		{"event line before the data", "event: error\ndata: {\"error\":{\"code\":503}}\n\n", sse.EventError, 503},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			class, code := sse.Classify(openai.Chat, []byte(tc.event))
			require.Equal(t, tc.class, class, "Classify(%q)", tc.event)
			require.Equal(t, tc.code, code, "Classify(%q)", tc.event)
		})
	}
}
