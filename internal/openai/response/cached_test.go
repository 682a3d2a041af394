package response

import (
	"strings"
	"testing"

	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/sim/testkit/assert"
)

func TestHasCachedTokens(t *testing.T) {
	const name = `"cached_tokens"`
	for _, s := range []string{
		"", "_", name, name[1:], name[:len(name)-1], `"cached_token"`, `"Cached_tokens"`, `'cached_tokens'`, `{"prompt_tokens":1}`, strings.Repeat("_", 300) + name + "_",
	} {
		assert.Equal(t, HasCachedTokens(openai.Chat, []byte(s)), strings.Contains(s, name), "HasCachedTokens(%q)", s)
	}
}
