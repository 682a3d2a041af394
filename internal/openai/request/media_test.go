package request_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/request"
)

func TestMedia(t *testing.T) {
	t.Parallel()
	const image = `{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}`
	chat := func(content string) string { return `{"messages":[{"role":"user","content":` + content + `}]}` }
	for _, tc := range []struct {
		kind openai.Kind
		body string
		want bool
	}{
		{openai.Chat, chat(`"hi"`), false}, {openai.Chat, chat(`[{"type":"text","text":"hi"}]`), false},
		{openai.Chat, chat(`[{"type":"text","text":"hi"},` + image + `]`), true}, {openai.Chat, chat(" [ " + image + " ] "), true},
		{openai.Chat, `{"messages":[{"role":"user","content":"[a] [b"},{"content" : [` + image + `]}]}`, true},
		{openai.Chat, chat(`[{"type":"text","text":"` + strings.ReplaceAll(chat("["+image+"]"), `"`, `\"`) + `"}]`), false},
		{openai.Chat, chat(`"` + strings.ReplaceAll(chat("["+image+"]"), `"`, `\"`) + `"`), false},
		{openai.Chat, chat(`[{"type":"text","text":"image_url"}]`), false}, {openai.Chat, chat(`[{"type":"input_audio","input_audio":{}}]`), true},
		{openai.Messages, `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[{"type":"image","source":{}}]}]}`, true},
		{openai.Responses, `{"input":[{"role":"user","content":[{"type":"input_image","image_url":"x"}]}]}`, true},
		// vLLM infers the type of a part without a type from its members.
		{openai.Chat, chat(`[{"image_url":"http://x"}]`), true}, {openai.Chat, chat(`[{"audio_url":{"url":"http://x"}}]`), true},
		{openai.Chat, chat(`[{"type":"text","text":"hi","image_url":null}]`), false}, {openai.Chat, chat(`[{"type":"prompt_embeds","data":"AAAA"}]`), true},
		// The result of a tool may be an image.
		{openai.Messages, `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"image","source":{}}]}]}]}`, true},
		{openai.Messages, `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"text","text":"image"}]}]}]}`, false},
		{openai.Responses, `{"input":[{"type":"function_call_output","call_id":"c","output":[{"type":"input_image","image_url":"x"}]}]}`, true},
		{openai.Responses, `{"input":[{"type":"function_call_output","call_id":"c","output":"input_image"}]}`, false},
		{openai.Responses, `{"input":"[1]"}`, false}, {openai.Completion, `{"prompt":[1,2]}`, false},
	} {
		r, err := request.Parse(tc.kind, []byte(tc.body))
		require.NoError(t, err, tc.body)
		assert.Equal(t, tc.want, r.Media(), "%s: %v", tc.body, !tc.want)
	}
}
