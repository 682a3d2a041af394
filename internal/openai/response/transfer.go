package response

import (
	"bytes"

	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/jsonscan"
)

// MayHaveTransferParams reports whether HideTransferParams may have to change b. It is a
// fast check: most answers have the names with the value null.
func MayHaveTransferParams(b []byte) bool {
	for {
		_, value, ok := bytes.Cut(b, []byte(`_transfer_params"`))
		if !ok {
			return false
		}
		if !bytes.HasPrefix(bytes.TrimLeft(value, ": \t\r\n"), []byte("null")) {
			return true
		}
		b = value
	}
}

// HideTransferParams returns an answer, or one event, without its members about transfers
// inside the fleet, which hold addresses of engines. They become null, as in the answer of a
// single engine; /v1/messages has no nulls, so they are removed.
func HideTransferParams(k openai.Kind, answer []byte) []byte {
	open := bytes.IndexByte(answer, '{') // after "data: " in an event
	if open < 0 {
		return answer
	}
	if k == openai.Responses {
		if m, ok := jsonscan.Find(answer, open, "response"); ok { // the last event has the whole answer
			inner := hideIn(k, answer[m.Value:m.End], 0)
			answer = jsonscan.Replaced(answer, m.Value, m.End, inner)
		}
	}
	return hideIn(k, answer, open)
}

// hideIn is HideTransferParams for the members of the object at open.
func hideIn(k openai.Kind, b []byte, open int) []byte {
	for _, name := range [...]string{"kv_transfer_params", "ec_transfer_params"} {
		for {
			m, prevEnd, next, ok := findTransfer(k, b, open, name)
			if !ok {
				break
			}
			switch {
			case k != openai.Messages:
				b = jsonscan.Replaced(b, m.Value, m.End, []byte("null"))
			case prevEnd >= 0:
				b = jsonscan.Replaced(b, prevEnd, m.End, nil)
			default:
				b = jsonscan.Replaced(b, m.Key, max(next, m.End), nil)
			}
		}
	}
	return b
}

// findTransfer returns a member of that name that must be hidden. prevEnd is the end of the
// member before it and next the start of the member after it, -1 for none.
func findTransfer(k openai.Kind, b []byte, open int, name string) (found jsonscan.Member, prevEnd, next int, ok bool) {
	s := jsonscan.Scanner{Text: b}
	before := -1
	prevEnd, next = -1, -1
	_, err := s.Members(open, 0, func(m jsonscan.Member) error {
		switch {
		case ok && next < 0:
			next = m.Key
		case !ok && string(jsonscan.Unquote(b[m.Key:m.KeyEnd])) == name && (k == openai.Messages || !jsonscan.IsNull(b[m.Value:m.End])):
			found, prevEnd, ok = m, before, true
		}
		before = m.End
		return nil
	})
	return found, prevEnd, next, ok && err == nil
}
