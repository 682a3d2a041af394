package response

import (
	"strings"
	"testing"

	"github.com/pdmesh/pdmesh/internal/openai"
)

func TestHasCachedTokens(t *testing.T) {
	const name = `"cached_tokens"`
	for _, s := range []string{
		"", "_", name, name[1:], name[:len(name)-1], `"cached_token"`, `"Cached_tokens"`, `'cached_tokens'`, `{"prompt_tokens":1}`, strings.Repeat("_", 300) + name + "_",
	} {
		if got, want := HasCachedTokens(openai.Chat, []byte(s)), strings.Contains(s, name); got != want {
			t.Errorf("HasCachedTokens(%q) = %v, want %v", s, got, want)
		}
	}
}
