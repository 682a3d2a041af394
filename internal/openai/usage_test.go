package openai_test

import (
	"strings"
	"testing"

	"github.com/pdmesh/pdmesh/internal/openai"
)

func TestCachedTokens(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, body, cached, set string }{
		{"there", `{"a":1,"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens": 8}}}`, "8", `{"a":1,"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens": 3}}}`},
		{"no details", `{"usage":{"prompt_tokens":9,"prompt_tokens_details":null}}`, "0", ""},
		{"no usage", `{"usage":null,"x":{"cached_tokens":1}}`, "", ""},
		{"in a text", `{"choices":[{"text":"{\"usage\":{\"prompt_tokens_details\":{\"cached_tokens\":8}}}"}]}`, "", ""},
		{"null", `{"usage":{"prompt_tokens_details":{"cached_tokens":null}}}`, "null", ""},
		{"a text", `{"usage":{"prompt_tokens_details":{"cached_tokens":"8"}}}`, "", `{"usage":{"prompt_tokens_details":{"cached_tokens":3}}}`},
		{"a list over lines", "{\"usage\":{\"prompt_tokens_details\":{\"cached_tokens\":[\n\n8]}}}", "", `{"usage":{"prompt_tokens_details":{"cached_tokens":3}}}`},
		{"no JSON", `{"usage":{"prompt_tokens_details":{"cached_tokens":1}`, "", ""},
		{"nothing", ``, "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if got := openai.CachedTokens([]byte(tc.body)); got != tc.cached {
				t.Errorf("CachedTokens %q, want %q", got, tc.cached)
			}
			want := tc.set
			if want == "" {
				want = tc.body
			}
			if got := string(openai.SetCachedTokens([]byte(tc.body), "3")); got != want {
				t.Errorf("SetCachedTokens %s, want %s", got, want)
			}
			if strings.Contains(tc.body, "\n") {
				return
			}
			event := "data: " + tc.body + "\n\n"
			if got := string(openai.SetCachedTokens([]byte(event), "3")); tc.set != "" && got != "data: "+tc.set+"\n\n" {
				t.Errorf("in an event: %s", got)
			}
		})
	}
}
