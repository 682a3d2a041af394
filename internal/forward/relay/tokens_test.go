package relay

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/response"
)

// Later events replace the numbers of earlier ones, prefill reports the cached tokens, and events without
// numbers cause no allocation.
func TestAnswer_Tokens(t *testing.T) {
	t.Parallel()
	const token = `data: {"choices":[{"index":0,"text":"a","finish_reason":null,"stop_reason":null}]}` + "\n\n"
	a := Answer{Kind: openai.Completion}
	a.noteEvents([]byte(token + token))
	a.noteEvents([]byte(token + `data: {"choices":[{"text":"","finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":1}}` + "\n\n"))
	a.noteEvents([]byte(`data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":9}}}` + "\n\ndata: [DONE]\n\n"))
	want := (response.Tokens{Input: 9, Cached: 9, Output: 3, Finish: "stop"})
	assert.Equal(t, want, a.Tokens)
	a.Prompted(0, 0) // no prefill
	assert.Equal(t, 9, a.Tokens.Cached, "%+v", a.Tokens)
	a.Prompted(8, 0)
	assert.True(t, a.Tokens.Input == 9 && a.Tokens.Cached == 0, "%+v", a.Tokens)
	a.Prompted(8, 10)
	assert.Equal(t, 9, a.Tokens.Cached, "more than the prompt has: %+v", a.Tokens)
	a.noteWhole([]byte(`{"usage":{"prompt_tokens":7,"prompt_tokens_details":{"cached_tokens":12}}}`))
	assert.True(t, a.Tokens.Input == 7 && a.Tokens.Cached == 7, "%+v", a.Tokens)
	other := Answer{Kind: openai.Other}
	other.noteEvents([]byte(token))
	other.noteWhole([]byte(`{"usage":{"prompt_tokens":9}}`))
	assert.True(t, (other.Tokens == response.Tokens{}), "%+v of an answer of another kind", other.Tokens)
}

func TestAnswer_TokensAllocateNothing(t *testing.T) { //nolint:paralleltest // it counts allocations
	a := Answer{Kind: openai.Chat}
	batch := []byte(`data: {"choices":[{"index":0,"delta":{"content":"a_reason\":"},"finish_reason":null}]}` + "\n\n")
	assert.EqualValues(t, 0, testing.AllocsPerRun(100, func() { a.noteEvents(batch) }), "allocations for an event")
}
