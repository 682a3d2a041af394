package response_test

import (
	"slices"
	"testing"

	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/response"
)

func TestPromptTokenIDs(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, answer string
		kind         openai.Kind
		want         []uint32
	}{
		{"a chat", `{"choices":[{"token_ids":[9]}],"prompt_token_ids":[1,22, 4294967295]}`, openai.Chat, []uint32{1, 22, 4294967295}},
		{"a completion", `{"choices":[{"text":"x","prompt_token_ids":[7],"token_ids":[9]}]}`, openai.Completion, []uint32{7}},
		{"none", `{"prompt_token_ids":null}`, openai.Chat, nil},
		{"not there", `{"choices":[]}`, openai.Completion, nil},
		{"an empty list", `{"prompt_token_ids":[]}`, openai.Chat, []uint32{}},
		{"too large", `{"prompt_token_ids":[4294967296]}`, openai.Chat, nil},
		{"negative", `{"prompt_token_ids":[1,-2]}`, openai.Chat, nil},
		{"texts", `{"prompt_token_ids":["1"]}`, openai.Chat, nil},
		{"no JSON", `{"prompt_token_ids":[1`, openai.Chat, nil},
	} {
		if got := response.PromptTokenIDs(tc.kind, []byte(tc.answer)); !slices.Equal(got, tc.want) || (got == nil) != (tc.want == nil) {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}
