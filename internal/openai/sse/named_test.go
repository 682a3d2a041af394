package sse_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/sse"
)

func named(name, data string) string { return "event: " + name + "\ndata: " + data + "\n\n" }

func TestNamedEvents(t *testing.T) {
	t.Parallel()
	const preamble, content, failed = sse.EventPreamble, sse.EventContent, sse.EventError
	const none, end, failedEnd, fault = sse.SignNone, sse.SignEnd, sse.SignFailedEnd, sse.SignError
	for _, tc := range []struct {
		kind  openai.Kind
		event string
		class sse.EventClass
		sign  sse.Sign
	}{
		{openai.Responses, named("response.created", `{"type":"response.created","response":{}}`), preamble, none},
		{openai.Responses, named("response.in_progress", `{}`), preamble, none},
		{openai.Responses, named("response.output_item.added", `{}`), preamble, none},
		{openai.Responses, named("response.content_part.added", `{}`), preamble, none},
		{openai.Responses, named("response.reasoning_part.added", `{}`), preamble, none},
		{openai.Responses, named("response.output_text.delta", `{"delta":"x"}`), content, none},
		{openai.Responses, named("response.function_call_arguments.delta", `{}`), content, none},
		{openai.Responses, named("response.output_item.done", `{}`), content, none},
		{openai.Responses, named("response.completed", `{}`), content, end},
		{openai.Responses, named("response.incomplete", `{}`), content, end},
		{openai.Responses, named("response.failed", `{}`), failed, failedEnd},
		{openai.Responses, named("error", `{}`), failed, fault},
		{openai.Responses, "data: {\"type\":\"response.completed\"}\n\n", content, end},
		{openai.Responses, "data: {\"type\":\"response.created\"}\r\n\r\n", preamble, none},
		{openai.Responses, "data: {\"error\":{\"code\":503}}\n\n", failed, fault},
		{openai.Responses, ": keep-alive\n\n", preamble, none},
		{openai.Responses, "\n\n: keep-alive\nevent:response.completed\ndata: {}\n\n", content, end},
		{openai.Responses, named("response.new", `{}`), content, none},
		{openai.Messages, "data: {\"error\":{\"code\":503}}\n\n", failed, fault},
		{openai.Messages, "data: {\"type\":\"error\",\"error\":{\"type\":\"internal_error\"}}\n\n", failed, fault},
		{openai.Responses, "data: {\"type\":\"error\",\"message\":\"x\"}\n\n", failed, fault},
		{openai.Messages, named("message_start", `{"type":"message_start"}`), preamble, none},
		{openai.Messages, named("ping", `{"type":"ping"}`), preamble, none},
		{openai.Messages, named("content_block_start", `{}`), preamble, none},
		{openai.Messages, named("content_block_stop", `{}`), preamble, none},
		{openai.Messages, named("content_block_delta", `{}`), content, none},
		{openai.Messages, named("message_delta", `{}`), content, none},
		{openai.Messages, named("message_stop", `{}`), content, end},
		{openai.Messages, named("error", `{"type":"error"}`), failed, fault},
		{openai.Messages, "data: {\"type\":\"ping\"}\n\n", preamble, none},
		{openai.Messages, ": keep-alive\n\n", preamble, none},
		{openai.Messages, "data: [DONE]\n\n", content, none},
		{openai.Chat, "data: [DONE]\n\n", sse.EventDone, end},
		{openai.Chat, "data: {\"choices\":[]}\n\n", preamble, none},
		{openai.Chat, "data: {\"choices\":[{\"delta\":{},\"token_ids\":[3]}]}\n\n", preamble, none}, // part of a <think>
		{openai.Completion, "data: {\"choices\":[{\"text\":\"\",\"token_ids\":[3]}]}\n\n", content, none},
		{openai.Generate, "data: {\"choices\":[{\"token_ids\":[3]}]}\n\n", content, none},
		{openai.Completion, "data: {\"error\":{}}\n\n", failed, fault},
		{openai.Other, "data: {\"choices\":[]}\n\n", content, none},
	} {
		if class, _ := sse.Classify(tc.kind, []byte(tc.event)); class != tc.class {
			t.Errorf("%s %q: class %d, want %d", tc.kind.Path(), tc.event, class, tc.class)
		}
		if sign := sse.SignOf(tc.kind, []byte(tc.event)); sign != tc.sign {
			t.Errorf("%s %q: sign %d, want %d", tc.kind.Path(), tc.event, sign, tc.sign)
		}
	}
}

// A client that does not stream receives the error of an event in the format of its API.
func TestErrorOfAnEvent(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		kind        openai.Kind
		event, want string
	}{
		{openai.Chat, "data: {\"error\":{\"code\":503}}\n\n", `{"error":{"code":503}}`},
		{openai.Messages, named("error", `{"type":"error","error":{"type":"x","message":"m"}}`), `{"type":"error","error":{"type":"x","message":"m"}}`},
		{openai.Messages, "data: {\"error\":{\"message\":\"m\"}}\n\n", `{"type":"error","error":{"type":"InternalServerError","message":"m"}}`},
		{openai.Responses, named("response.failed", `{"response":{"error":{"code":"server_error","message":"m"}}}`), `"message":"m"`},
		{openai.Responses, named("error", `{"type":"error","message":"m"}`), `"message":"m"`},
		{openai.Responses, named("error", `{"error":{"message":"m"}}`), `"message":"m"`},
		{openai.Responses, named("response.failed", `{"response":{"error":null}}`), `the engine reported an error`},
	} {
		got := sse.ErrorOf(tc.kind, []byte(tc.event))
		assert.True(t, json.Valid(got) && strings.Contains(string(got), tc.want), "%q: %s", tc.event, got)
	}
}
