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
	var out []byte // b[:from] without those members
	from, before, kept, leading := 0, 0, false, false
	s := jsonscan.Scanner{Text: b}
	_, err := s.Members(open, 0, func(m jsonscan.Member) error {
		if leading { // no member is left before this one, so the comma goes, too
			from, leading = m.Key, false
		}
		switch name := string(jsonscan.Unquote(b[m.Key:m.KeyEnd])); {
		case name != "kv_transfer_params" && name != "ec_transfer_params":
			kept = true
		case k != openai.Messages:
			out, from = append(append(out, b[from:m.Value]...), "null"...), m.End
		case kept:
			out, from = append(out, b[from:before]...), m.End
		default:
			out, from, leading = append(out, b[from:m.Key]...), m.End, true
		}
		before = m.End
		return nil
	})
	if err != nil || from == 0 {
		return b
	}
	return append(out, b[from:]...)
}
