package model_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
)

const prose = `{"role":"user","content":"Etymologically, disaggregation is unremarkable: https://example.com/a?b=c&d=e"} 日本語のテキスト é`

func TestFineTokensVaryInLength(t *testing.T) {
	t.Parallel()
	text := strings.Repeat(prose, 20)
	counts := map[int]bool{}
	for n := 100; n+100 < len(text); n += 100 {
		counts[len(model.TokenizeFine(text[n:n+100]))] = true
	}
	assert.GreaterOrEqual(t, len(counts), 3, "100 bytes are always about as many tokens: %v", counts)
	if n := len(model.TokenizeFine(text)); n <= len(text)/8 || n >= len(text) {
		t.Errorf("%d bytes are %d tokens", len(text), n)
	}
}

// TestFineTokensOfLongerText: appended text changes at most the last eight tokens.
func TestFineTokensOfLongerText(t *testing.T) {
	t.Parallel()
	whole := model.TokenizeFine(prose)
	for n := range len(prose) {
		got := model.TokenizeFine(prose[:n])
		same := common(got, whole)
		assert.GreaterOrEqual(t, same, len(got)-8, "the first %d bytes share %d of %d tokens with the text", n, same, len(got))
	}
}

func common(a, b []int) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// TestFineTokensOfAnswers: the text of an answer is split into the tokens of the answer.
func TestFineTokensOfAnswers(t *testing.T) {
	t.Parallel()
	for choice := range 50 {
		a := model.Generate(model.Tokenize(prose), model.Sampling{MaxTokens: 40, MinTokens: 40, Choice: choice})
		want := append(model.TokenizeFine(prose), a.Tokens...)
		require.Equal(t, want, model.TokenizeFine(prose+a.Text), "prompt and answer")
	}
}
