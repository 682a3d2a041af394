package openai_test

import (
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/sse"
)

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
			`{"type":"error","sequence_number":7,"code":"BadGatewayError","message":"lost <it>","param":null}` + "\n\n"},
	} {
		w := httptest.NewRecorder()
		kind.WriteError(w, e)
		if got := w.Body.String(); got != want[0] || w.Code != 502 {
			t.Errorf("%s: %d %s", kind.Path(), w.Code, got)
		}
		event := kind.ErrorEvent(e, 7)
		if string(event) != want[1] {
			t.Errorf("%s: %q", kind.Path(), event)
		}
		if class, _ := sse.Classify(kind, event); class != sse.EventError {
			t.Errorf("%s does not take its own error event for one: %d", kind.Path(), class)
		}
	}
	w := httptest.NewRecorder()
	openai.Messages.WriteError(w, openai.NotJSON())
	assert.Equal(t, answerTo(t, "/v1/messages text/plain"), w.Body.String(), "of another Content-Type")
	w = httptest.NewRecorder()
	openai.Messages.WriteError(w, openai.UnknownModel("other", []string{"tiny"}))
	assert.Equal(t, answerTo(t, "/v1/messages other model"), w.Body.String(), "of an unknown model")
}
