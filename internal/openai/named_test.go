package openai_test

import (
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/pdmesh/pdmesh/internal/openai"
)

func named(name, data string) string { return "event: " + name + "\ndata: " + data + "\n\n" }

func TestNamedEvents(t *testing.T) {
	t.Parallel()
	const preamble, content, failed = openai.EventPreamble, openai.EventContent, openai.EventError
	const none, end, failedEnd, fault = openai.SignNone, openai.SignEnd, openai.SignFailedEnd, openai.SignError
	for _, tc := range []struct {
		kind  openai.Kind
		event string
		class openai.EventClass
		sign  openai.Sign
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
		{openai.Chat, "data: [DONE]\n\n", openai.EventDone, end},
		{openai.Chat, "data: {\"choices\":[]}\n\n", preamble, none},
		{openai.Completion, "data: {\"error\":{}}\n\n", failed, fault},
		{openai.Other, "data: {\"choices\":[]}\n\n", content, none},
	} {
		if class, _ := openai.Classify(tc.kind, []byte(tc.event)); class != tc.class {
			t.Errorf("%s %q: class %d, want %d", tc.kind.Path(), tc.event, class, tc.class)
		}
		if sign := openai.SignOf(tc.kind, []byte(tc.event)); sign != tc.sign {
			t.Errorf("%s %q: sign %d, want %d", tc.kind.Path(), tc.event, sign, tc.sign)
		}
	}
}

func TestErrorsOfEachKind(t *testing.T) {
	t.Parallel()
	e := &openai.Error{Status: 502, Type: openai.TypeBadGateway, Message: "lost <it>"}
	const body = `{"error":{"message":"lost <it>","type":"BadGatewayError","param":null,"code":502}}`
	const anthropic = `{"type":"error","error":{"type":"BadGatewayError","message":"lost <it>"}}`
	for kind, want := range map[openai.Kind][2]string{
		openai.Completion: {body, "data: " + body + "\n\n"},
		openai.Chat:       {body, "data: " + body + "\n\n"},
		openai.Other:      {body, "data: " + body + "\n\n"},
		openai.Messages:   {anthropic, "event: error\ndata: " + anthropic + "\n\n"},
		openai.Responses: {body, "event: error\ndata: " +
			`{"type":"error","sequence_number":0,"code":"BadGatewayError","message":"lost <it>","param":null}` + "\n\n"},
	} {
		w := httptest.NewRecorder()
		kind.WriteError(w, e)
		if got := w.Body.String(); got != want[0] || w.Code != 502 {
			t.Errorf("%s: %d %s", kind.Path(), w.Code, got)
		}
		event := kind.ErrorEvent(e)
		if string(event) != want[1] {
			t.Errorf("%s: %q", kind.Path(), event)
		}
		if class, _ := openai.Classify(kind, event); class != openai.EventError {
			t.Errorf("%s does not take its own error event for one: %d", kind.Path(), class)
		}
	}
	w := httptest.NewRecorder()
	openai.Messages.WriteError(w, openai.NotJSON())
	if got := w.Body.String(); got != answerTo(t, "/v1/messages text/plain") {
		t.Errorf("of another Content-Type: %s", got)
	}
	w = httptest.NewRecorder()
	openai.Messages.WriteError(w, openai.UnknownModel("other", []string{"tiny"}))
	if got := w.Body.String(); got != answerTo(t, "/v1/messages other model") {
		t.Errorf("of an unknown model: %s", got)
	}
}

// A client that gets no stream is told of an error event in the shape of its API.
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
		got := openai.ErrorOf(tc.kind, []byte(tc.event))
		if !json.Valid(got) || !strings.Contains(string(got), tc.want) {
			t.Errorf("%q: %s", tc.event, got)
		}
	}
}

func TestHandoversAreHidden(t *testing.T) {
	t.Parallel()
	const kv = `"kv_transfer_params":{"remote_host":"10.0.0.1"}`
	for _, tc := range []struct {
		kind       openai.Kind
		said, want string
	}{
		{openai.Chat, `{"id":"x",` + kv + `,"ec_transfer_params":{"a":1},"n":null}`, `{"id":"x","kv_transfer_params":null,"ec_transfer_params":null,"n":null}`},
		{openai.Chat, `{"id":"x","kv_transfer_params":null}`, `{"id":"x","kv_transfer_params":null}`},
		{openai.Chat, `{` + kv + `,` + kv + `}`, `{"kv_transfer_params":null,"kv_transfer_params":null}`},
		{openai.Chat, `{"choices":[{"text":"{\"kv_transfer_params\":{}}"}]}`, `{"choices":[{"text":"{\"kv_transfer_params\":{}}"}]}`},
		{openai.Chat, "data: {\"choices\":[]," + kv + "}\n\n", "data: {\"choices\":[],\"kv_transfer_params\":null}\n\n"},
		{openai.Responses, `{"output":[],` + kv + `}`, `{"output":[],"kv_transfer_params":null}`},
		{openai.Responses, named("response.completed", `{"response":{`+kv+`,"id":"x"}}`), named("response.completed", `{"response":{"kv_transfer_params":null,"id":"x"}}`)},
		{openai.Messages, `{"id":"x",` + kv + `}`, `{"id":"x"}`},
		{openai.Messages, `{` + kv + `, "id":"x"}`, `{"id":"x"}`},
		{openai.Messages, `{` + kv + `}`, `{}`},
		{openai.Messages, `{"a":1 , "ec_transfer_params":null,` + kv + `,"b":2}`, `{"a":1,"b":2}`},
		{openai.Messages, `no JSON {`, `no JSON {`},
	} {
		said := []byte(tc.said)
		if got := openai.HideHandover(tc.kind, said); string(got) != tc.want {
			t.Errorf("%s: %s\ngot  %s\nwant %s", tc.kind.Path(), tc.said, got, tc.want)
		}
		if string(said) != tc.said {
			t.Errorf("%s was changed in place", tc.said)
		}
	}
	for text, want := range map[string]bool{
		`{"text":"kv_transfer_params\""}`: false, `{"kv_transfer_params":null,"ec_transfer_params" : null}`: false, kv: true,
		`{"kv_transfer_params":null,"ec_transfer_params":{}}`: true,
	} {
		if openai.MayTellHandover([]byte(text)) != want {
			t.Errorf("%s: there is something to hide: %v", text, !want)
		}
	}
}
