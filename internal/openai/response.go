package openai

import (
	"bytes"
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

// LastMember is a quick TopLevel for a field that engines put last: it gives the
// value if it is followed by nothing but the end of the object, and nil if TopLevel
// has to be asked. What stands in front of the field is not looked at; if that is
// JSON, the two agree.
func LastMember(object []byte, name string) []byte {
	i := bytes.Index(object, []byte(name)) // without the quote, which stands everywhere
	if i < 2 || object[i-1] != '"' {
		return nil
	}
	// Within a string the quote would be escaped. As a value it would follow a colon,
	// or have none behind it.
	if c := object[i-2]; c != ',' && c != '{' && c != ' ' {
		return nil
	}
	if i += len(name); i == len(object) || object[i] != '"' {
		return nil
	}
	s := scanner{b: object}
	i = s.space(i + 1)
	if i == len(object) || object[i] != ':' {
		return nil
	}
	from := s.space(i + 1)
	end, err := s.value(from, 1)
	if err != nil {
		return nil
	}
	last := s.space(end)
	if last == len(object) || object[last] != '}' || s.space(last+1) != len(object) || isNull(object[from:end]) {
		return nil
	}
	return object[from:end]
}
