package response

import (
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/jsonscan"
)

// PromptTokenIDs returns the tokens of the prompt in a response to a request with
// return_token_ids, or nil if there are none.
func PromptTokenIDs(k openai.Kind, answer []byte) []uint32 {
	s, at := jsonscan.Scanner{Text: answer}, 0
	if k == openai.Completion {
		m, ok := jsonscan.Find(answer, 0, "choices")
		if !ok || answer[m.Value] != '[' {
			return nil
		}
		at = s.Space(m.Value + 1)
	}
	list := jsonscan.Value(answer, at, "prompt_token_ids")
	ids, _ := jsonscan.AppendUints(make([]uint32, 0, len(list)/5+1), list)
	return ids
}
