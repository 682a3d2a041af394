package fakevllm_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

const prose = `{"role":"user","content":"Etymologically, disaggregation is unremarkable: https://example.com/a?b=c&d=e"} 日本語のテキスト é`

func TestFineTokensVaryInLength(t *testing.T) {
	t.Parallel()
	text := strings.Repeat(prose, 20)
	counts := map[int]bool{}
	for n := 100; n+100 < len(text); n += 100 {
		counts[len(fakevllm.TokenizeFine(text[n:n+100]))] = true
	}
	if len(counts) < 3 {
		t.Errorf("100 bytes are always about as many tokens: %v", counts)
	}
	if n := len(fakevllm.TokenizeFine(text)); n <= len(text)/8 || n >= len(text) {
		t.Errorf("%d bytes are %d tokens", len(text), n)
	}
}

// TestFineTokensOfLongerText: what is added changes the last eight tokens at most.
func TestFineTokensOfLongerText(t *testing.T) {
	t.Parallel()
	whole := fakevllm.TokenizeFine(prose)
	for n := range len(prose) {
		got := fakevllm.TokenizeFine(prose[:n])
		if same := common(got, whole); same < len(got)-8 {
			t.Errorf("the first %d bytes share %d of %d tokens with the text", n, same, len(got))
		}
	}
}

func common(a, b []int) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// TestFineTokensOfAnswers: an answer comes back as its own tokens.
func TestFineTokensOfAnswers(t *testing.T) {
	t.Parallel()
	for choice := range 50 {
		a := fakevllm.ExpectedText(prose, fakevllm.Sampling{MaxTokens: 40, Choice: choice, IgnoreEOS: true})
		want := append(fakevllm.TokenizeFine(prose), a.Tokens...)
		if got := fakevllm.TokenizeFine(prose + a.Text); !slices.Equal(got, want) {
			t.Fatalf("prompt and answer are %v, not %v", got, want)
		}
	}
}

// TestFineTokensOnTheWire: every route that takes text takes it for the same tokens.
func TestFineTokensOnTheWire(t *testing.T) {
	t.Parallel()
	s := fakevllm.StartTest(t, fakevllm.Options{FineTokens: true})
	ids := fakevllm.TokenizeFine(prose)
	if slices.Equal(ids, fakevllm.Tokenize(prose)) {
		t.Fatal("the text does not tell the tokenizers apart")
	}
	for path, body := range map[string]string{
		"/tokenize":            `{"prompt":%q}`,
		"/v1/completions":      `{"prompt":%q,"max_tokens":1,"return_token_ids":true}`,
		"/v1/chat/completions": `{"messages":[{"role":"user","content":%q}],"max_tokens":1,"return_token_ids":true}`,
	} {
		r := post(t, client(t), s.URL()+path, "", fmt.Sprintf(body, prose))
		list := strings.Trim(jsonText(ids), "[]")
		if r.status != 200 || !strings.Contains(r.body, list) {
			t.Errorf("%s answers %d %s without %s", path, r.status, r.body, list)
		}
	}
	chat := `{"messages":[{"role":"user","content":"` + strings.Repeat("x", 50) + `"}]`
	r := post(t, client(t), s.URL()+"/tokenize", "", chat+"}")
	_, tokens, _ := strings.Cut(r.body, `"tokens":`)
	tokens, _, _ = strings.Cut(tokens, "]")
	if c := post(t, client(t), s.URL()+"/v1/chat/completions", "", chat+`,"max_tokens":1,"return_token_ids":true}`); !strings.Contains(c.body, `"prompt_token_ids":`+tokens+"]") {
		t.Errorf("the chat's tokens are not %s]: %s", tokens, c.body)
	}
}
