package fakevllm_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
)

const prose = `{"role":"user","content":"Etymologically, disaggregation is unremarkable: https://example.com/a?b=c&d=e"} 日本語のテキスト é`

// TestFineTokensOnTheWire: every route that accepts text splits it into the same tokens.
func TestFineTokensOnTheWire(t *testing.T) {
	t.Parallel()
	s := fakevllm.StartTest(t, fakevllm.Options{FineTokens: true})
	ids := model.TokenizeFine(prose)
	require.False(t, slices.Equal(ids, model.Tokenize(prose)), "the text has the same tokens with both tokenizers")
	for path, body := range map[string]string{
		"/tokenize":            `{"prompt":%q}`,
		"/v1/completions":      `{"prompt":%q,"max_tokens":1,"return_token_ids":true}`,
		"/v1/chat/completions": `{"messages":[{"role":"user","content":%q}],"max_tokens":1,"return_token_ids":true}`,
	} {
		r := post(t, client(t), s.URL()+path, "", fmt.Sprintf(body, prose))
		list := strings.Trim(jsonText(ids), "[]")
		assert.True(t, r.status == 200 && strings.Contains(r.body, list),
			"%s answers %d %s without %s", path, r.status, r.body, list)
	}
	chat := `{"messages":[{"role":"user","content":"` + strings.Repeat("x", 50) + `"}]`
	r := post(t, client(t), s.URL()+"/tokenize", "", chat+"}")
	_, tokens, _ := strings.Cut(r.body, `"tokens":`)
	tokens, _, _ = strings.Cut(tokens, "]")
	if c := post(t, client(t), s.URL()+"/v1/chat/completions", "", chat+`,"max_tokens":1,"return_token_ids":true}`); !strings.Contains(c.body, `"prompt_token_ids":`+tokens+"]") {
		t.Errorf("the chat's tokens are not %s]: %s", tokens, c.body)
	}
}
