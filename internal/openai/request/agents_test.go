package request_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/request"
)

func TestResponsesAndMessagesAreRead(t *testing.T) {
	t.Parallel()
	const turn = `"messages":[{"role":"user","content":"x"}]`
	for _, tc := range []struct {
		name, body string
		want       request.Request
	}{
		{"responses", `{"model":"m","input":"x","stream":true,"max_output_tokens":9,"max_tokens":5}`, request.Request{Scanned: request.Scanned{Kind: openai.Responses}, Model: "m", Stream: true, MaxTokens: 9}},
		{"nothing but the input", `{"input":[]}`, request.Request{Scanned: request.Scanned{Kind: openai.Responses}}},
		{"nulls", `{"input":"x","model":null,"stream":null,"store":null,"background":null,"stop":null,"max_output_tokens":null,"previous_response_id":null}`, request.Request{Scanned: request.Scanned{Kind: openai.Responses}}},
		{"fields of other APIs", `{"input":"x","n":5,"echo":true,"max_tokens":0,"stream_options":{"include_obfuscation":false}}`, request.Request{Scanned: request.Scanned{Kind: openai.Responses}}},
		{"a stored response", `{"input":"x","previous_response_id":"resp_1"}`, request.Request{Scanned: request.Scanned{Kind: openai.Responses}, Bypass: "stored_response"}},
		{"in the background", `{"input":"x","background":true}`, request.Request{Scanned: request.Scanned{Kind: openai.Responses}, Bypass: "background"}},
		{"in the background after a stored response", `{"input":"x","background":true,"previous_response_id":"resp_1"}`, request.Request{Scanned: request.Scanned{Kind: openai.Responses}, Bypass: "stored_response"}},
		{"in the background, as text", `{"input":"x","background":"yes"}`, request.Request{Scanned: request.Scanned{Kind: openai.Responses}, Bypass: "background"}},
		{"not in the background", `{"input":"x","background":"no","previous_response_id":""}`, request.Request{Scanned: request.Scanned{Kind: openai.Responses}}},
		{"a tool of the engine", `{"input":"x","tools":[{"type":"function","name":"f"},{"name":"s","type": "web_search_preview"}]}`, request.Request{Scanned: request.Scanned{Kind: openai.Responses}, Bypass: "engine_tools"}},
		{"tools of the client", `{"input":"x","tools":[{"type":"function","name":"mcp"},{"type":"web_search"},{"type":"namespace","tools":[{"type":"mcp"}]}]}`, request.Request{Scanned: request.Scanned{Kind: openai.Responses}}},
		{"a tool of the engine in the background", `{"input":"x","background":true,"tools":[{"type":"mcp","server_label":"container"}]}`, request.Request{Scanned: request.Scanned{Kind: openai.Responses}, Bypass: "background"}},
		{"a forced call", `{"input":"x","tool_choice":{"type":"function","name":"f"}}`, request.Request{Scanned: request.Scanned{Kind: openai.Responses}, CutReason: "forced_tool"}},
		{"messages", `{"model":"m",` + turn + `,"max_tokens":9,"stream":true}`, request.Request{Scanned: request.Scanned{Kind: openai.Messages}, Model: "m", Stream: true, MaxTokens: 9}},
		{"stop sequences", `{"model":"m",` + turn + `,"max_tokens":9,"stop_sequences":["x"],"tool_choice":{"type":"auto"}}`, request.Request{Scanned: request.Scanned{Kind: openai.Messages}, Model: "m", MaxTokens: 9}},
		{"any tool", `{"model":"m",` + turn + `,"max_tokens":9,"tool_choice":{"type":"any"}}`, request.Request{Scanned: request.Scanned{Kind: openai.Messages}, Model: "m", MaxTokens: 9, CutReason: "forced_tool"}},
		{"one tool", `{"model":"m",` + turn + `,"max_tokens":9,"tool_choice":{"name":"f","type":"tool"}}`, request.Request{Scanned: request.Scanned{Kind: openai.Messages}, Model: "m", MaxTokens: 9, CutReason: "forced_tool"}},
		{"thinking", `{"model":"m",` + turn + `,"max_tokens":9,"thinking":{"type":"enabled","budget_tokens":5}}`, request.Request{Scanned: request.Scanned{Kind: openai.Messages}, Model: "m", MaxTokens: 9, CutReason: "thinking_budget"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			checkRead(t, tc.want.Kind, tc.body, tc.want)
		})
	}
}

// Invalid fields are refused if the edit of the prefill leg would hide them from the engine.
func TestResponsesAndMessagesAreRefused(t *testing.T) {
	t.Parallel()
	const turn = `{"model":"m","messages":[{"role":"user","content":"x"}]`
	for _, tc := range []struct {
		kind       openai.Kind
		body, says string
	}{
		{openai.Responses, `{"input":"x","stream":"x"}`, "invalid stream"},
		{openai.Responses, `{"input":"x","store":"x"}`, "invalid store"},
		{openai.Responses, `{"input":"x","background":[]}`, "invalid background"},
		{openai.Responses, `{"input":"x","ignore_eos":null}`, "invalid ignore_eos"},
		{openai.Responses, `{"input":"x","stop":5}`, "invalid stop"},
		{openai.Responses, `{"input":"x","stop_token_ids":5}`, "invalid stop_token_ids"},
		{openai.Responses, `{"input":"x","max_output_tokens":2.5}`, "invalid max_output_tokens"},
		{openai.Responses, `{"input":"x","max_output_tokens":0}`, "invalid max_tokens: must be at least 1, got 0"},
		{openai.Responses, `{"input":"x","priority":null}`, "invalid priority"},
		{openai.Responses, `{"model":"m"}`, "missing required fields: input"},
		{openai.Messages, turn + `}`, "missing required fields: max_tokens"},
		{openai.Messages, turn + `,"max_tokens":null}`, "invalid max_tokens: must not be null"},
		{openai.Messages, turn + `,"max_tokens":0}`, "invalid max_tokens: must be at least 1, got 0"},
		{openai.Messages, turn + `,"max_tokens":1,"stop_sequences":"x"}`, "invalid stop_sequences"},
		{openai.Messages, turn + `,"max_tokens":1,"stream":"x"}`, "invalid stream"},
		{openai.Messages, turn + `,"max_tokens":1,"model":null}`, "invalid model"},
	} {
		_, err := request.Parse(tc.kind, []byte(tc.body))
		var e *openai.Error
		assert.True(t, errors.As(err, &e) && e.Status == 400 && strings.Contains(e.Message, tc.says),
			"%s: %v", tc.body, err)
	}
}

// The policies see the field of each API that has the prompt.
func TestPromptOfEachKind(t *testing.T) {
	t.Parallel()
	const body = `{"model":"m","prompt":null,"input":"i","messages":[1],"max_tokens":1}`
	for kind, want := range map[openai.Kind]string{openai.Chat: "[1]", openai.Messages: "[1]", openai.Responses: `"i"`, openai.Completion: "null"} {
		r, err := request.Parse(kind, []byte(body))
		if err != nil || string(r.Prompt()) != want {
			t.Errorf("%s: %s, %v", kind.Path(), r.Prompt(), err)
		}
	}
}
