package response_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/response"
)

func TestCachedTokens(t *testing.T) {
	t.Parallel()
	prefills := response.Cached{Tokens: "3", Created: "64"}
	none := response.Cached{}
	for _, tc := range []struct {
		name, body string
		cached     response.Cached
		set        string
	}{
		{"there", `{"a":1,"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens": 8}}}`, response.Cached{Tokens: "8", Prompt: 9}, `{"a":1,"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens": 3}}}`},
		{"no details", `{"usage":{"prompt_tokens":9,"prompt_tokens_details":null}}`, response.Cached{Tokens: "0", Prompt: 9}, ""},
		{"no usage", `{"usage":null,"x":{"cached_tokens":1}}`, none, ""},
		{"in a text", `{"choices":[{"text":"{\"usage\":{\"prompt_tokens_details\":{\"cached_tokens\":8}}}"}]}`, none, ""},
		{"null", `{"usage":{"prompt_tokens_details":{"cached_tokens":null}}}`, response.Cached{Tokens: "null"}, ""},
		{"created", `{"usage":{"prompt_tokens_details":{"cached_tokens":86,"created_cache_tokens":0}}}`, response.Cached{Tokens: "86", Created: "0"}, `{"usage":{"prompt_tokens_details":{"cached_tokens":3,"created_cache_tokens":64}}}`},
		{"created first", `{"usage":{"prompt_tokens_details":{"created_cache_tokens": 0 ,"cached_tokens":86}}}`, response.Cached{Tokens: "86", Created: "0"}, `{"usage":{"prompt_tokens_details":{"created_cache_tokens": 64 ,"cached_tokens":3}}}`},
		{"created null", `{"usage":{"prompt_tokens_details":{"cached_tokens":8,"created_cache_tokens":null}}}`, response.Cached{Tokens: "8"}, `{"usage":{"prompt_tokens_details":{"cached_tokens":3,"created_cache_tokens":null}}}`},
		{"created text", `{"usage":{"prompt_tokens_details":{"cached_tokens":8,"created_cache_tokens":"0"}}}`, response.Cached{Tokens: "8"}, `{"usage":{"prompt_tokens_details":{"cached_tokens":3,"created_cache_tokens":64}}}`},
		{"a text", `{"usage":{"prompt_tokens_details":{"cached_tokens":"8"}}}`, none, `{"usage":{"prompt_tokens_details":{"cached_tokens":3}}}`},
		{"a list over lines", "{\"usage\":{\"prompt_tokens_details\":{\"cached_tokens\":[\n\n8]}}}", none, `{"usage":{"prompt_tokens_details":{"cached_tokens":3}}}`},
		{"no JSON", `{"usage":{"prompt_tokens_details":{"cached_tokens":1}`, none, ""},
		{"nothing", ``, none, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, tc.cached, response.CachedTokens(openai.Chat, []byte(tc.body)))
			want := tc.set
			if want == "" {
				want = tc.body
			}
			assert.Equal(t, want, string(response.SetCachedTokens(openai.Chat, []byte(tc.body), prefills)))
			if strings.Contains(tc.body, "\n") {
				return
			}
			event := "data: " + tc.body + "\n\n"
			got := string(response.SetCachedTokens(openai.Chat, []byte(event), prefills))
			assert.False(t, tc.set != "" && got != "data: "+tc.set+"\n\n", "in an event: %s", got)
		})
	}
}

// The two agent APIs have other names and positions for the same numbers.
func TestCachedTokensOfAgents(t *testing.T) {
	t.Parallel()
	const (
		responses = `"usage":{"input_tokens":86,"input_tokens_details":{"cached_tokens":85,"cache_write_tokens":0,"cached_tokens_per_turn":[]},"output_tokens":1}`
		message   = `"usage":{"input_tokens":1,"output_tokens":2,"cache_creation_input_tokens":0,"cache_read_input_tokens":85}`
	)
	for _, tc := range []struct {
		name    string
		kind    openai.Kind
		body    string
		cached  response.Cached
		prefill response.Cached
		set     string
	}{
		{"a response", openai.Responses, `{"a":1,` + responses + `}`, response.Cached{Tokens: "85", Created: "0", Prompt: 86}, response.Cached{Tokens: "16", Created: "64"},
			`{"a":1,"usage":{"input_tokens":86,"input_tokens_details":{"cached_tokens":16,"cache_write_tokens":64,"cached_tokens_per_turn":[]},"output_tokens":1}}`},
		{"the last event of a response", openai.Responses, `{"type":"response.completed","response":{"a":1,` + responses + `}}`,
			response.Cached{Tokens: "85", Created: "0", Prompt: 86}, response.Cached{Tokens: "16", Created: "64"},
			`{"type":"response.completed","response":{"a":1,"usage":{"input_tokens":86,"input_tokens_details":{"cached_tokens":16,"cache_write_tokens":64,"cached_tokens_per_turn":[]},"output_tokens":1}}}`},
		{"a response that has not ended", openai.Responses, `{"response":{"usage":null}}`, response.Cached{}, response.Cached{Tokens: "1"}, ""},
		{"a message", openai.Messages, `{` + message + `}`, response.Cached{Tokens: "85", Created: "0", Prompt: 86}, response.Cached{Tokens: "16", Created: "64"},
			`{"usage":{"input_tokens":6,"output_tokens":2,"cache_creation_input_tokens":64,"cache_read_input_tokens":16}}`},
		{"the beginning of a message", openai.Messages, `{"type":"message_start","message":{` + message + `}}`, response.Cached{Tokens: "85", Created: "0", Prompt: 86}, response.Cached{Tokens: "0"},
			`{"type":"message_start","message":{"usage":{"input_tokens":86,"output_tokens":2,"cache_creation_input_tokens":0,"cache_read_input_tokens":0}}}`},
		{"a prefill that has cached more", openai.Messages, `{` + message + `}`, response.Cached{Tokens: "85", Created: "0", Prompt: 86}, response.Cached{Tokens: "90"},
			`{"usage":{"input_tokens":0,"output_tokens":2,"cache_creation_input_tokens":0,"cache_read_input_tokens":90}}`},
		{"a message without details", openai.Messages, `{"usage":{"input_tokens":86,"output_tokens":2}}`, response.Cached{Tokens: "0", Prompt: 86}, response.Cached{Tokens: "16", Created: "64"}, ""},
		{"no number", openai.Messages, `{"usage":{"input_tokens":1,"cache_read_input_tokens":"85"}}`, response.Cached{}, response.Cached{Tokens: "16"}, ""},
		{"null of prefill", openai.Messages, `{` + message + `}`, response.Cached{Tokens: "85", Created: "0", Prompt: 86}, response.Cached{Tokens: "null"}, ""},
		{"what a tool said", openai.Messages, `{"content":[{"input":{` + message + `}}],"usage":{"input_tokens":1}}`, response.Cached{Tokens: "0", Prompt: 1}, response.Cached{Tokens: "16"}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, tc.cached, response.CachedTokens(tc.kind, []byte(tc.body)))
			want := tc.set
			if want == "" {
				want = tc.body
			} else if !response.HasCachedTokens(tc.kind, []byte(tc.body)) {
				t.Error("it is not looked into")
			}
			for _, around := range [][2]string{{}, {"event: x\ndata: ", "\n\n"}} {
				got := string(response.SetCachedTokens(tc.kind, []byte(around[0]+tc.body+around[1]), tc.prefill))
				assert.Equal(t, around[0]+want+around[1], got, "SetCachedTokens\ngot  %s\nwant %s", got, want)
			}
		})
	}
}
