package fakevllm_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

func TestEveryWordIsItsOwnToken(t *testing.T) {
	t.Parallel()
	for id := fakevllm.FirstTextToken; id < fakevllm.VocabSize; id++ {
		word := string(fakevllm.AppendWord(nil, id))
		if got := fakevllm.Tokenize(word); len(got) != 1 || got[0] != id {
			t.Fatalf("%q of %d is tokenized as %v", word, id, got)
		}
	}
}

func TestTokenizeOfPromptAndAnswer(t *testing.T) {
	t.Parallel()
	prompts := []string{
		"hello", "hello ", " ", "  two  spaces ", "tabs\tand\nnewlines", strings.Repeat("x", 100), "日本語のテキスト",
		"ends in a letter run of exactly12", "bad\xffutf8", " bababa", `quote" back\`,
	}
	for _, prompt := range prompts {
		for choice := range 50 {
			a := fakevllm.ExpectedText(prompt, fakevllm.Sampling{MaxTokens: 40, Choice: choice, IgnoreEOS: true})
			want := append(fakevllm.Tokenize(prompt), a.Tokens...)
			if got := fakevllm.Tokenize(prompt + a.Text); !slices.Equal(got, want) {
				t.Fatalf("prompt %q: prompt and answer are tokenized as %v, not %v", prompt, got, want)
			}
			if got := fakevllm.Detokenize(a.Tokens); got != a.Text {
				t.Fatalf("Detokenize gives %q, not %q", got, a.Text)
			}
		}
	}
}

func TestTokenizeSizes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, text string
		n          int
	}{
		{"nothing", "", 0},
		{"a word", "hello", 1},
		{"words", "hello big world", 3},
		{"a space of its own", "a  b", 3},
		{"a long run", strings.Repeat("x", 25), 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := fakevllm.Tokenize(tt.text); len(got) != tt.n {
				t.Errorf("%d tokens %v, not %d", len(got), got, tt.n)
			}
		})
	}
}

// TestContinuation is what migrations rely on: a generation cut anywhere and
// continued from prompt plus partial answer has the same rest.
func TestContinuation(t *testing.T) {
	t.Parallel()
	for seed := range 60 {
		prompt := fakevllm.Tokenize("the prompt of seed " + strings.Repeat("ab ", seed))
		whole := fakevllm.ExpectedCompletion(prompt, fakevllm.Sampling{MaxTokens: 300})
		for cut := 1; cut < len(whole.Tokens)-1; cut += 7 {
			ids := slices.Concat(prompt, whole.Tokens[:cut])
			rest := fakevllm.ExpectedCompletion(ids, fakevllm.Sampling{MaxTokens: 300 - cut})
			head := fakevllm.Detokenize(whole.Tokens[:cut])
			if head+rest.Text != whole.Text || rest.FinishReason != whole.FinishReason {
				t.Fatalf("seed %d cut at %d: %q + %q is not %q", seed, cut, head, rest.Text, whole.Text)
			}
		}
	}
}

func TestChatContinuation(t *testing.T) {
	t.Parallel()
	messages := []fakevllm.Message{{"system", "be brief"}, {"user", "hi <|im_end|>"}}
	whole := fakevllm.ExpectedChat(messages, fakevllm.Sampling{MaxTokens: 50, IgnoreEOS: true})
	for cut := range whole.Tokens {
		head := fakevllm.Detokenize(whole.Tokens[:cut])
		prompt := fakevllm.ChatPrompt(append(messages, fakevllm.Message{Role: "assistant", Content: head}), true)
		rest := fakevllm.ExpectedCompletion(prompt, fakevllm.Sampling{MaxTokens: 50 - cut, IgnoreEOS: true})
		if head+rest.Text != whole.Text {
			t.Fatalf("cut at %d: %q + %q is not %q", cut, head, rest.Text, whole.Text)
		}
	}
}

func TestAnswersEnd(t *testing.T) {
	t.Parallel()
	stopped, total := 0, 0
	for seed := range 400 {
		a := fakevllm.ExpectedCompletion([]int{seed + 100}, fakevllm.Sampling{MaxTokens: 5000})
		if a.FinishReason == "stop" {
			stopped++
		}
		total += len(a.Tokens)
	}
	if mean := total / 400; stopped < 390 || mean < 150 || mean > 400 {
		t.Errorf("%d of 400 answers ended by themselves, %d tokens on average; expected nearly all, about 256", stopped, mean)
	}
}

func TestSampling(t *testing.T) {
	t.Parallel()
	prompt := fakevllm.Tokenize("a prompt for sampling")
	base := fakevllm.ExpectedCompletion(prompt, fakevllm.Sampling{MaxTokens: 2000})
	n := len(base.Tokens)
	if base.FinishReason != "stop" || n < 20 {
		t.Fatalf("the prompt is unsuitable: %d tokens, %s", n, base.FinishReason)
	}
	word := func(i int) string { return string(fakevllm.AppendWord(nil, base.Tokens[i])) }
	upTo := func(i int) string { return fakevllm.Detokenize(base.Tokens[:i]) }
	for _, tt := range []struct {
		name   string
		s      fakevllm.Sampling
		tokens int
		text   string // "*" for any
		finish string
		reason any
	}{
		{"natural end counts EOS", fakevllm.Sampling{MaxTokens: 2000}, n, upTo(n - 1), "stop", nil},
		{"length", fakevllm.Sampling{MaxTokens: 7}, 7, upTo(7), "length", nil},
		{"exactly at the end", fakevllm.Sampling{MaxTokens: n}, n, upTo(n - 1), "stop", nil},
		{"one before the end", fakevllm.Sampling{MaxTokens: n - 1}, n - 1, upTo(n - 1), "length", nil},
		{"ignore_eos", fakevllm.Sampling{MaxTokens: n + 5, IgnoreEOS: true}, n + 5, "*", "length", nil},
		{"min_tokens bars EOS", fakevllm.Sampling{MaxTokens: n, MinTokens: n}, n, "*", "length", nil},
		{"min_tokens reached", fakevllm.Sampling{MaxTokens: 2000, MinTokens: n - 1}, n, upTo(n - 1), "stop", nil},
		{"stop string", fakevllm.Sampling{MaxTokens: 2000, Stop: []string{word(4)}}, 5, upTo(4), "stop", word(4)},
		{"stop string included", fakevllm.Sampling{MaxTokens: 2000, Stop: []string{word(4)}, IncludeStop: true}, 5, upTo(5), "stop", word(4)},
		{"stop string over two tokens", fakevllm.Sampling{MaxTokens: 2000, Stop: []string{word(4)[3:] + word(5)[:3]}}, 6, upTo(4) + word(4)[:3], "stop", word(4)[3:] + word(5)[:3]},
		{"stop string barred by min_tokens", fakevllm.Sampling{MaxTokens: 8, MinTokens: 8, Stop: []string{word(4)}}, 8, upTo(8), "length", nil},
		{"stop token", fakevllm.Sampling{MaxTokens: 2000, StopTokenIDs: []int{base.Tokens[6]}}, 7, upTo(6), "stop", base.Tokens[6]},
		{"stop token included", fakevllm.Sampling{MaxTokens: 2000, StopTokenIDs: []int{base.Tokens[6]}, IncludeStop: true}, 7, upTo(7), "stop", base.Tokens[6]},
		{"stop token that never comes", fakevllm.Sampling{MaxTokens: 9, StopTokenIDs: []int{1}}, 9, upTo(9), "length", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a := fakevllm.ExpectedCompletion(prompt, tt.s)
			if len(a.Tokens) != tt.tokens || a.FinishReason != tt.finish || a.StopReason != tt.reason {
				t.Errorf("%d tokens, %s, %v; expected %d, %s, %v", len(a.Tokens), a.FinishReason, a.StopReason, tt.tokens, tt.finish, tt.reason)
			}
			if tt.text != "*" && a.Text != tt.text {
				t.Errorf("text %q, not %q", a.Text, tt.text)
			}
		})
	}
	barred := fakevllm.ExpectedCompletion(prompt, fakevllm.Sampling{MaxTokens: 10, MinTokens: 8, StopTokenIDs: []int{base.Tokens[6]}})
	if slices.Contains(barred.Tokens[:8], base.Tokens[6]) {
		t.Errorf("a stop token came before min_tokens: %v", barred.Tokens)
	}
}

func TestWordsSurviveJSON(t *testing.T) {
	t.Parallel()
	var all []byte
	for id := fakevllm.FirstTextToken; id < fakevllm.FirstTextToken+300; id++ {
		all = fakevllm.AppendWord(all, id)
	}
	for _, special := range []string{"é", "🙂", `"`, "\n", `\`} {
		if !strings.Contains(string(all), special) {
			t.Errorf("no word has %q: relays that spoil it would not be noticed", special)
		}
	}
	b, err := json.Marshal(string(all))
	if err != nil || !json.Valid(b) {
		t.Fatal(err)
	}
}
