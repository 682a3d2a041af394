package response

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/openai"
)

func TestHasCachedTokens(t *testing.T) {
	const name = `"cached_tokens"`
	for _, s := range []string{
		"", "_", name, name[1:], name[:len(name)-1], `"cached_token"`, `"Cached_tokens"`, `'cached_tokens'`, `{"prompt_tokens":1}`, strings.Repeat("_", 300) + name + "_",
	} {
		assert.Equal(t, strings.Contains(s, name), HasCachedTokens(openai.Chat, []byte(s)), "HasCachedTokens(%q)", s)
	}
}
