package relay_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/forward/relay"
	"github.com/pdmesh/pdmesh/internal/openai"
)

// The model is replaced where an API has it, and nowhere else.
func TestModelName(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind      openai.Kind
		in, wants string
	}{
		{openai.Chat, `{"id":"a","model":"m","choices":[{"message":{"content":"\"model\":\"m\"","model":"m"}}]}`, `{"id":"a","model":"x","choices":[{"message":{"content":"\"model\":\"m\"","model":"m"}}]}`},
		{openai.Completion, "data: {\"model\": \"m\",\"choices\":[]}\n\n", "data: {\"model\": \"x\",\"choices\":[]}\n\n"},
		{openai.Responses, "event: a\ndata: {\"type\":\"response.created\",\"response\":{\"model\":\"m\"}}\n\n", "event: a\ndata: {\"type\":\"response.created\",\"response\":{\"model\":\"x\"}}\n\n"},
		{openai.Messages, "event: a\ndata: {\"message\":{\"model\":\"m\"}}\n\n", "event: a\ndata: {\"message\":{\"model\":\"x\"}}\n\n"},
		{openai.Chat, "data: {\"response\":{\"model\":\"m\"}}\n\n", "data: {\"response\":{\"model\":\"m\"}}\n\n"},
		{openai.Other, `{"model":null}`, `{"model":null}`},
		{openai.Other, `"model" is {broken`, `"model" is {broken`},
		{openai.Other, "data: [DONE]\n\n", "data: [DONE]\n\n"},
	} {
		m := &relay.ModelName{Kind: c.kind, Name: `"x"`}
		assert.Equal(t, c.wants, string(m.Rewrite([]byte(c.in))), "whole")
		if got := string(relay.RewriteEvents(m, []byte(c.in))); c.in[len(c.in)-1] == '\n' && got != c.wants {
			t.Errorf("events: %s, want %s", got, c.wants)
		}
	}
}
