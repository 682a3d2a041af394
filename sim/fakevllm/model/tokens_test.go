package model_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

func TestTokenize_OneTokenPerWord(t *testing.T) {
	t.Parallel()
	for id := model.FirstTextToken; id < model.FirstByte; id++ {
		word := string(model.AppendWord(nil, id))
		got := model.Tokenize(word)
		require.True(t, len(got) == 1 && got[0] == id, "%q of %d is tokenized as %v", word, id, got)
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
			a := model.Generate(model.Tokenize(prompt), model.Sampling{MaxTokens: 40, MinTokens: 40, Choice: choice})
			want := append(model.Tokenize(prompt), a.Tokens...)
			require.Equal(t, want, model.Tokenize(prompt+a.Text),
				"prompt %q: prompt and answer are tokenized as", prompt)
			require.Equal(t, a.Text, model.Detokenize(a.Tokens), "Detokenize returns")
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
			assert.Len(t, model.Tokenize(tt.text), tt.n, "tokens")
		})
	}
}

// TestContinuation: an answer that is cut anywhere, and continued from the prompt
// and the partial answer, has the same rest. Continued streams rely on this.
func TestContinuation(t *testing.T) {
	t.Parallel()
	for seed := range 60 {
		prompt := model.Tokenize("the prompt of seed " + strings.Repeat("ab ", seed))
		whole := model.Generate(prompt, model.Sampling{MaxTokens: 300})
		for cut := 1; cut < len(whole.Tokens)-1; cut += 7 {
			ids := slices.Concat(prompt, whole.Tokens[:cut])
			rest := model.Generate(ids, model.Sampling{MaxTokens: 300 - cut})
			head := model.Detokenize(whole.Tokens[:cut])
			require.True(t, head+rest.Text == whole.Text && rest.FinishReason == whole.FinishReason,
				"seed %d cut at %d: %q + %q is not %q", seed, cut, head, rest.Text, whole.Text)
		}
	}
}

func TestAnswersEnd(t *testing.T) {
	t.Parallel()
	stopped, total := 0, 0
	for seed := range 400 {
		a := model.Generate([]int{seed + 100}, model.Sampling{MaxTokens: 5000})
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
	prompt := model.Tokenize("a prompt for sampling")
	base := model.Generate(prompt, model.Sampling{MaxTokens: 2000})
	n := len(base.Tokens)
	require.True(t, base.FinishReason == "stop" && n >= 20,
		"the prompt is unsuitable: %d tokens, %s", n, base.FinishReason)
	word := func(i int) string { return string(model.AppendWord(nil, base.Tokens[i])) }
	upTo := func(i int) string { return model.Detokenize(base.Tokens[:i]) }
	for _, tt := range []struct {
		name   string
		s      model.Sampling
		tokens int
		text   string // "*" for any
		finish string
		reason any
	}{
		{"natural end counts EOS", model.Sampling{MaxTokens: 2000}, n, upTo(n - 1), "stop", nil},
		{"length", model.Sampling{MaxTokens: 7}, 7, upTo(7), "length", nil},
		{"exactly at the end", model.Sampling{MaxTokens: n}, n, upTo(n - 1), "stop", nil},
		{"one before the end", model.Sampling{MaxTokens: n - 1}, n - 1, upTo(n - 1), "length", nil},
		{"ignore_eos", model.Sampling{MaxTokens: n + 5, IgnoreEOS: true}, n + 5, "*", "length", nil},
		{"min_tokens bars EOS", model.Sampling{MaxTokens: n, MinTokens: n}, n, "*", "length", nil},
		{"min_tokens reached", model.Sampling{MaxTokens: 2000, MinTokens: n - 1}, n, upTo(n - 1), "stop", nil},
		{"stop string", model.Sampling{MaxTokens: 2000, Stop: []string{word(4)}}, 5, upTo(4), "stop", word(4)},
		{"stop string included", model.Sampling{MaxTokens: 2000, Stop: []string{word(4)}, IncludeStop: true}, 5, upTo(5), "stop", word(4)},
		{"stop string over two tokens", model.Sampling{MaxTokens: 2000, Stop: []string{word(4)[3:] + word(5)[:3]}}, 6, upTo(4) + word(4)[:3], "stop", word(4)[3:] + word(5)[:3]},
		{"stop string barred by min_tokens", model.Sampling{MaxTokens: 8, MinTokens: 8, Stop: []string{word(4)}}, 8, upTo(8), "length", nil},
		{"stop token", model.Sampling{MaxTokens: 2000, StopTokenIDs: []int{base.Tokens[6]}}, 7, upTo(6), "stop", base.Tokens[6]},
		{"stop token included", model.Sampling{MaxTokens: 2000, StopTokenIDs: []int{base.Tokens[6]}, IncludeStop: true}, 7, upTo(7), "stop", base.Tokens[6]},
		{"stop token that never comes", model.Sampling{MaxTokens: 9, StopTokenIDs: []int{1}}, 9, upTo(9), "length", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a := model.Generate(prompt, tt.s)
			if len(a.Tokens) != tt.tokens || a.FinishReason != tt.finish || a.StopReason != tt.reason {
				t.Errorf("%d tokens, %s, %v; expected %d, %s, %v", len(a.Tokens), a.FinishReason, a.StopReason, tt.tokens, tt.finish, tt.reason)
			}
			assert.False(t, tt.text != "*" && a.Text != tt.text, "text %q, not %q", a.Text, tt.text)
		})
	}
	barred := model.Generate(prompt, model.Sampling{MaxTokens: 10, MinTokens: 8, StopTokenIDs: []int{base.Tokens[6]}})
	assert.False(t, slices.Contains(barred.Tokens[:8], base.Tokens[6]),
		"a stop token came before min_tokens: %v", barred.Tokens)
}

func TestWordsSurviveJSON(t *testing.T) {
	t.Parallel()
	var all []byte
	for id := model.FirstTextToken; id < model.FirstTextToken+300; id++ {
		all = model.AppendWord(all, id)
	}
	testkit.Contains(t, string(all), "é", "🙂", `"`, "\n", `\`)
	b, err := json.Marshal(string(all))
	require.True(t, err == nil && json.Valid(b), "%v", err)
}

func TestWordsAsJSON(t *testing.T) {
	t.Parallel()
	for id := range model.FirstByte {
		var back string
		out := append(model.AppendWordJSON([]byte{'"'}, id), '"')
		if err := json.Unmarshal(out, &back); err != nil || back != string(model.AppendWord(nil, id)) {
			t.Fatalf("word %d: %s: %v", id, out, err)
		}
	}
}
