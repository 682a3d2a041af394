package openai_test

import (
	"strings"
	"testing"

	"github.com/pdmesh/pdmesh/internal/openai"
)

func TestCachedTokens(t *testing.T) {
	t.Parallel()
	prefills := openai.Cached{Tokens: "3", Created: "64"}
	none, zero := openai.Cached{}, openai.Cached{Tokens: "0"}
	for _, tc := range []struct {
		name, body string
		cached     openai.Cached
		set        string
	}{
		{"there", `{"a":1,"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens": 8}}}`, openai.Cached{Tokens: "8"}, `{"a":1,"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens": 3}}}`},
		{"no details", `{"usage":{"prompt_tokens":9,"prompt_tokens_details":null}}`, zero, ""},
		{"no usage", `{"usage":null,"x":{"cached_tokens":1}}`, none, ""},
		{"in a text", `{"choices":[{"text":"{\"usage\":{\"prompt_tokens_details\":{\"cached_tokens\":8}}}"}]}`, none, ""},
		{"null", `{"usage":{"prompt_tokens_details":{"cached_tokens":null}}}`, openai.Cached{Tokens: "null"}, ""},
		{"created", `{"usage":{"prompt_tokens_details":{"cached_tokens":86,"created_cache_tokens":0}}}`, openai.Cached{Tokens: "86", Created: "0"}, `{"usage":{"prompt_tokens_details":{"cached_tokens":3,"created_cache_tokens":64}}}`},
		{"created first", `{"usage":{"prompt_tokens_details":{"created_cache_tokens": 0 ,"cached_tokens":86}}}`, openai.Cached{Tokens: "86", Created: "0"}, `{"usage":{"prompt_tokens_details":{"created_cache_tokens": 64 ,"cached_tokens":3}}}`},
		{"created null", `{"usage":{"prompt_tokens_details":{"cached_tokens":8,"created_cache_tokens":null}}}`, openai.Cached{Tokens: "8"}, `{"usage":{"prompt_tokens_details":{"cached_tokens":3,"created_cache_tokens":null}}}`},
		{"created text", `{"usage":{"prompt_tokens_details":{"cached_tokens":8,"created_cache_tokens":"0"}}}`, openai.Cached{Tokens: "8"}, `{"usage":{"prompt_tokens_details":{"cached_tokens":3,"created_cache_tokens":64}}}`},
		{"a text", `{"usage":{"prompt_tokens_details":{"cached_tokens":"8"}}}`, none, `{"usage":{"prompt_tokens_details":{"cached_tokens":3}}}`},
		{"a list over lines", "{\"usage\":{\"prompt_tokens_details\":{\"cached_tokens\":[\n\n8]}}}", none, `{"usage":{"prompt_tokens_details":{"cached_tokens":3}}}`},
		{"a response", `{"usage":{"input_tokens":9,"input_tokens_details":{"cached_tokens":8,"cache_write_tokens":0,"cached_tokens_per_turn":[]}}}`, openai.Cached{Tokens: "8", Created: "0"}, `{"usage":{"input_tokens":9,"input_tokens_details":{"cached_tokens":3,"cache_write_tokens":64,"cached_tokens_per_turn":[]}}}`},
		{"in an event's response", `{"response":{"usage":{"input_tokens_details":{"cached_tokens":8}}},"type":"response.completed"}`, openai.Cached{Tokens: "8"}, `{"response":{"usage":{"input_tokens_details":{"cached_tokens":3}}},"type":"response.completed"}`},
		{"a response that has not ended", `{"response":{"usage":null,"x":{"cached_tokens":8}}}`, none, ""},
		{"a response that is a text", `{"response":"usage","x":{"cached_tokens":8}}`, none, ""},
		{"a message", `{"usage":{"input_tokens":9,"output_tokens":2,"cache_creation_input_tokens":0,"cache_read_input_tokens":8}}`, openai.Cached{Tokens: "8", Created: "0", Input: "9"}, ""},
		{"a message that tells nothing", `{"usage":{"input_tokens":9,"output_tokens":2,"cache_read_input_tokens":null}}`, zero, ""},
		{"no JSON", `{"usage":{"prompt_tokens_details":{"cached_tokens":1}`, none, ""},
		{"nothing", ``, none, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if got := openai.CachedTokens([]byte(tc.body)); got != tc.cached {
				t.Errorf("CachedTokens %+v, want %+v", got, tc.cached)
			}
			want := tc.set
			if want == "" {
				want = tc.body
			}
			if got := string(openai.SetCachedTokens([]byte(tc.body), prefills)); got != want {
				t.Errorf("SetCachedTokens %s, want %s", got, want)
			}
			if strings.Contains(tc.body, "\n") {
				return
			}
			event := "data: " + tc.body + "\n\n"
			if got := string(openai.SetCachedTokens([]byte(event), prefills)); tc.set != "" && got != "data: "+tc.set+"\n\n" {
				t.Errorf("in an event: %s", got)
			}
		})
	}
}

// The three numbers of /v1/messages belong together.
func TestCachedTokensOfMessages(t *testing.T) {
	t.Parallel()
	prefills := openai.CachedTokens([]byte(`{"id":"x","usage":{"input_tokens":5,"output_tokens":1,"cache_creation_input_tokens":64,"cache_read_input_tokens":32}}`))
	if want := (openai.Cached{Tokens: "32", Created: "64", Input: "5"}); prefills != want {
		t.Fatalf("%+v, want %+v", prefills, want)
	}
	for before, after := range map[string]string{
		`{"usage":{"input_tokens":101,"output_tokens":7,"cache_creation_input_tokens":0,"cache_read_input_tokens":0}}`: `{"usage":{"input_tokens":5,"output_tokens":7,"cache_creation_input_tokens":64,"cache_read_input_tokens":32}}`,
		`{"message":{"usage":{"cache_read_input_tokens":100 ,"input_tokens": 1}}}`:                                     `{"message":{"usage":{"cache_read_input_tokens":32 ,"input_tokens": 5}}}`,
		`{"usage":{"input_tokens":101,"output_tokens":7}}`:                                                             "",
		`{"usage":{"input_tokens":101,"cache_read_input_tokens":null}}`:                                                "",
		`{"usage":{"input_tokens":"101","cache_read_input_tokens":1}}`:                                                 "",
		`{"text":"\"cache_read_input_tokens\":1"}`:                                                                     "",
	} {
		if after == "" {
			after = before
		}
		if got := string(openai.SetCachedTokens([]byte(before), prefills)); got != after {
			t.Errorf("%s became %s", before, got)
		}
		event := func(data string) string { return "event: message_delta\ndata: " + data + "\n\n" }
		if got := string(openai.SetCachedTokens([]byte(event(before)), prefills)); got != event(after) {
			t.Errorf("in an event %s became %s", before, got)
		}
	}
}
