package response

import (
	"bytes"
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

func BenchmarkHasCachedTokens(b *testing.B) {
	event := []byte(`data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null,"token_ids":null}],"usage":null}` + "\n\n")
	batch := bytes.Repeat(event, 60)
	b.SetBytes(int64(len(batch)))
	for b.Loop() {
		if HasCachedTokens(openai.Chat, batch) {
			b.Fatal("found")
		}
	}
}
