package response

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/pdmesh/pdmesh/internal/openai"
)

// TestHasCachedTokens compares with the obvious way, everywhere in texts of all
// kinds.
func TestHasCachedTokens(t *testing.T) {
	const name = `"cached_tokens"`
	texts := []string{
		"", "_", name, name[1:], name[:len(name)-1], `"cached_token"`, `"Cached_tokens"`, `'cached_tokens'`,
		strings.Repeat("_", 300), strings.Repeat("_", 300) + name, strings.Repeat("_", 300) + name + "_",
		strings.Repeat("a_b", 100) + name[:5] + name, strings.Repeat("cached_tokens", 100), strings.Repeat(name[:8], 100) + name,
	}
	for n := range 80 {
		texts = append(texts, strings.Repeat("_", n)+name, strings.Repeat("x", n)+name+strings.Repeat("_", n), strings.Repeat("_y", n)+name[:n%len(name)])
	}
	r := rand.New(rand.NewPCG(1, 2))
	parts := []string{"_", "x", "1234567_", name, name[:8], name[8:], `"`, "finish_reason", strings.Repeat("_", 7), strings.Repeat("_", 70)}
	for range 2000 {
		var s strings.Builder
		for range r.IntN(30) {
			s.WriteString(parts[r.IntN(len(parts))])
		}
		texts = append(texts, s.String())
	}
	for _, s := range texts {
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
