package openai

import "bytes"

// handoverFields are what an engine's answer says about transfers inside the fleet.
func handoverFields() [2]string { return [2]string{"kv_transfer_params", "ec_transfer_params"} }

// MayTellHandover is a cheap test whether there is something for HideHandover to do:
// most answers have the names, and null behind them.
func MayTellHandover(b []byte) bool {
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

// HideHandover gives an answer, or one event, without what it says about transfers
// inside the fleet, addresses of engines among it. Where an engine alone would say
// null, null is left; /v1/messages has no nulls.
func HideHandover(k Kind, answer []byte) []byte {
	open := bytes.IndexByte(answer, '{') // behind "data: " in an event
	if open < 0 {
		return answer
	}
	if k == Responses {
		if m, ok := findMember(answer, open, "response"); ok { // the last event has the whole answer
			inner := hideIn(k, answer[m.val:m.end], 0)
			answer = replaced(answer, m.val, m.end, inner)
		}
	}
	return hideIn(k, answer, open)
}

// hideIn is HideHandover for the members of the object at open.
func hideIn(k Kind, b []byte, open int) []byte {
	for _, name := range handoverFields() {
		for {
			m, prevEnd, next, ok := told(k, b, open, name)
			if !ok {
				break
			}
			switch {
			case k != Messages:
				b = replaced(b, m.val, m.end, []byte("null"))
			case prevEnd >= 0:
				b = replaced(b, prevEnd, m.end, nil)
			default:
				b = replaced(b, m.key, max(next, m.end), nil)
			}
		}
	}
	return b
}

// told finds a member of that name which tells something, the end of the member
// before it, -1 for none, and the start of the member behind, -1 for none.
func told(k Kind, b []byte, open int, name string) (found member, prevEnd, next int, ok bool) {
	s := scanner{b: b}
	before := -1
	prevEnd, next = -1, -1
	_, err := s.members(open, 0, func(m member) error {
		switch {
		case ok && next < 0:
			next = m.key
		case !ok && string(unquote(b[m.key:m.keyEnd])) == name && (k == Messages || !isNull(b[m.val:m.end])):
			found, prevEnd, ok = m, before, true
		}
		before = m.end
		return nil
	})
	return found, prevEnd, next, ok && err == nil
}
