package openai

import (
	"errors"
)

// TopLevel finds the value of a top-level field in a JSON object, as the bytes
// that stand there, nil if absent or null. Of duplicate keys the last counts.
// It is for answers of engines: the error says what is wrong with them.
func TopLevel(object []byte, name string) ([]byte, error) {
	s := scanner{b: object}
	i := s.space(0)
	if i >= len(object) || object[i] != '{' {
		return nil, errors.New("not an object")
	}
	var raw []byte
	end, err := s.members(i, 0, func(m member) error {
		if string(unquote(object[m.key:m.keyEnd])) == name {
			raw = object[m.val:m.end]
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if end = s.space(end); end != len(object) {
		return nil, syntaxErrorAt(end, extraData)
	}
	if raw != nil && isNull(raw) {
		return nil, nil
	}
	return raw, nil
}
