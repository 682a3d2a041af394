package request_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/request"
)

func TestTokensTell(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]bool{
		`{"messages":[],"prompt":"p"}`:                  true,
		`{"messages":[],"prompt":"p","cache_salt":"s"}`: false,
	} {
		for kind, returned := range map[openai.Kind]bool{openai.Chat: true, openai.Completion: true, openai.Messages: false, openai.Responses: false} {
			r, _ := request.Parse(kind, []byte(body)) // a refused request is parsed as well
			assert.Equal(t, want && returned, r.TokensIdentifyCache(), "%s on %v", body, kind)
		}
	}
}

func TestMayTruncate(t *testing.T) {
	t.Parallel()
	const chat, input = `{"messages":[{"role":"user","content":"hi"}],"max_tokens":9,`, `{"input":"hi","max_output_tokens":9,`
	const image = `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://h/i"}}]}],`
	for _, tc := range []struct {
		kind    openai.Kind
		body    string
		context int
		want    bool
	}{
		{openai.Chat, chat + `"truncate_prompt_tokens":-1}`, 50, true},
		{openai.Chat, chat + `"truncate_prompt_tokens":"-1"}`, 0, true},
		{openai.Chat, chat + `"truncate_prompt_tokens":-1}`, 200, false},
		{openai.Chat, chat + `"truncate_prompt_tokens":20}`, 50, false},
		{openai.Chat, chat + `"truncation":"auto"}`, 50, false},
		{openai.Chat, image + `"truncate_prompt_tokens":-1}`, 200, true},
		{openai.Responses, input + `"truncation":"auto"}`, 50, true},
		{openai.Responses, input + `"truncation":null}`, 50, true},
		{openai.Responses, input + `"truncation":"disabled"}`, 50, false},
		{openai.Responses, input + `"truncate_prompt_tokens":-1}`, 50, false},
		{openai.Messages, chat + `"model":"m","truncate_prompt_tokens":-1}`, 50, false},
	} {
		r, err := request.Parse(tc.kind, []byte(tc.body))
		require.NoError(t, err)
		assert.Equal(t, tc.want, r.MayTruncate(tc.context), "%s in %d tokens", tc.body, tc.context)
	}
}
