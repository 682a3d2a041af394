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

// LastMember is a quick TopLevel for a field that engines put among the last: it
// gives the value if nothing follows it but other members and the end of the
// object, and nil if TopLevel has to be asked. What stands in front of the field is
// not looked at; if that is JSON, the two agree.
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
	if last := s.others(end, name); last < 0 || s.space(last) != len(object) || isNull(object[from:end]) {
		return nil
	}
	return object[from:end]
}

// others reads the members of an object that follow the one which ends at i, and
// gives the position after the object; -1 if that is no JSON, or one of them might
// have the name given.
func (s *scanner) others(i int, name string) int {
	for {
		if i = s.space(i); i == len(s.b) {
			return -1
		}
		if s.b[i] == '}' {
			return i + 1
		}
		key := s.space(i + 1)
		if s.b[i] != ',' || key == len(s.b) || s.b[key] != '"' {
			return -1
		}
		end, err := s.str(key)
		if err != nil || bytes.IndexByte(s.b[key:end], '\\') >= 0 || string(s.b[key+1:end-1]) == name {
			return -1
		}
		if i = s.space(end); i == len(s.b) || s.b[i] != ':' {
			return -1
		}
		if i, err = s.value(s.space(i+1), 1); err != nil {
			return -1
		}
	}
}
