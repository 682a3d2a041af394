package response_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/response"
)

func TestTokensOf(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		kind openai.Kind
		body string
		want response.Tokens
	}{
		{"completion", openai.Completion, `{"choices":[{"text":"a","finish_reason":"length"}],"usage":{"prompt_tokens":9,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":8}}}`, response.Tokens{Input: 9, Cached: 8, Output: 4, Finish: "length"}},
		{"details null", openai.Chat, `{"choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":4,"prompt_tokens_details":null}}`, response.Tokens{Input: 9, Output: 4, Finish: "stop"}},
		{"last chunk", openai.Chat, `data: {"choices":[{"delta":{},"finish_reason":"tool_calls","stop_reason":null}]}`, response.Tokens{Finish: "tool_calls"}},
		{"second choice", openai.Chat, `{"choices":[{"finish_reason":null},{"finish_reason":"stop"}]}`, response.Tokens{Finish: "stop"}},
		{"usage chunk", openai.Chat, `data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4}}`, response.Tokens{Input: 9, Output: 4}},
		{"response", openai.Responses, `{"status":"completed","usage":{"input_tokens":9,"output_tokens":4,"input_tokens_details":{"cached_tokens":8}}}`, response.Tokens{Input: 9, Cached: 8, Output: 4, Finish: "completed"}},
		{"response event", openai.Responses, `{"type":"response.incomplete","response":{"status":"incomplete","incomplete_details":{"reason":"max_output_tokens"},"usage":{"input_tokens":9,"output_tokens":4}}}`, response.Tokens{Input: 9, Output: 4, Finish: "max_output_tokens"}},
		{"response that begins", openai.Responses, `{"type":"response.created","response":{"status":"in_progress","usage":null}}`, response.Tokens{}},
		{"response in the background", openai.Responses, `{"status":"queued","usage":null}`, response.Tokens{}},
		{"message", openai.Messages, `{"stop_reason":"end_turn","usage":{"input_tokens":1,"cache_read_input_tokens":8,"output_tokens":4}}`, response.Tokens{Input: 9, Cached: 8, Output: 4, Finish: "end_turn"}},
		{"message_start", openai.Messages, `{"type":"message_start","message":{"stop_reason":null,"usage":{"input_tokens":9,"output_tokens":0}}}`, response.Tokens{Input: 9}},
		{"message_delta", openai.Messages, `{"type":"message_delta","delta":{"stop_reason":"max_tokens"},"usage":{"output_tokens":4}}`, response.Tokens{Output: 4, Finish: "max_tokens"}},
		{"generate", openai.Generate, `{"choices":[{"token_ids":[1],"finish_reason":"stop"}]}`, response.Tokens{Finish: "stop"}},
		{"in a text", openai.Chat, `{"choices":[{"text":"{\"usage\":{\"prompt_tokens\":9}}","finish_reason":null}]}`, response.Tokens{}},
		{"no numbers", openai.Chat, `{"choices":[{"finish_reason":7}],"usage":{"prompt_tokens":"9","completion_tokens":-4,"prompt_tokens_details":{"cached_tokens":{}}}}`, response.Tokens{}},
		{"huge", openai.Chat, `{"usage":{"completion_tokens":99999999999}}`, response.Tokens{Output: 1<<31 - 1}},
		{"no JSON", openai.Chat, `{"usage":{"prompt`, response.Tokens{}},
		{"nothing", openai.Chat, ``, response.Tokens{}},
	} {
		assert.Equal(t, tc.want, response.TokensOf(tc.kind, []byte(tc.body)), tc.name)
		assert.False(t, (tc.want != response.Tokens{}) && tc.name != "response" && !response.MayReport([]byte(tc.body)),
			"%s: it may report nothing", tc.name)
	}
	for body, want := range map[string]bool{
		`{"finish_reason":null,"stop_reason":null}`: false, `{"finish_reason": "stop"}`: true, `{"finish_reason":null,"stop_reason":"x"}`: true,
		`{"text":"\"finish_reason\":\"stop\""}`: false, `_reason":`: false, ``: false,
	} {
		assert.Equal(t, want, response.MayReport([]byte(body)), "%s: may report", body)
	}
}
