package response

import (
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/jsonscan"
)

// PromptTokenIDs returns the tokens of the prompt in a response to a request with
// return_token_ids, or nil if there are none.
func PromptTokenIDs(k openai.Kind, answer []byte) []uint32 {
	const name = "prompt_token_ids"
	s, at := jsonscan.Scanner{Text: answer}, 0
	if k == openai.Completion {
		m, ok := jsonscan.Find(answer, 0, "choices")
		if !ok || answer[m.Value] != '[' {
			return nil
		}
		at = s.Space(m.Value + 1)
	}
	m, ok := jsonscan.Find(answer, at, name)
	if !ok || answer[m.Value] != '[' {
		return nil
	}
	return numbers(answer[m.Value+1 : m.End-1])
}

// numbers parses the inside of a list of non-negative integers; it returns nil for anything
// else.
func numbers(list []byte) []uint32 {
	out := make([]uint32, 0, len(list)/5+1)
	in, n := false, uint64(0)
	for _, b := range list {
		switch {
		case b >= '0' && b <= '9':
			if n = n*10 + uint64(b-'0'); n > 1<<32-1 {
				return nil
			}
			in = true
		case b == ',' && in:
			out = append(out, uint32(n))
			in, n = false, 0
		case b == ' ' && !in, b == '\n' && !in:
		default:
			return nil
		}
	}
	if in {
		out = append(out, uint32(n))
	}
	return out
}
