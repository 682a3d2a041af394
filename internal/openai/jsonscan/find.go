package jsonscan

import (
	"bytes"
	"errors"
	"slices"
)

// Find finds a member of the object that begins at i; of duplicates the last.
func Find(b []byte, i int, name string) (found Member, ok bool) {
	s := Scanner{Text: b}
	if i = s.Space(i); i >= len(b) || b[i] != '{' {
		return Member{}, false
	}
	_, err := s.Members(i, 0, func(m Member) error {
		if string(Unquote(b[m.Key:m.KeyEnd])) == name {
			found, ok = m, true
		}
		return nil
	})
	return found, ok && err == nil
}

// FindText returns the text of a member of the object that begins at i, nil if there is none, or if it
// is no string. It may share the bytes of b.
func FindText(b []byte, i int, name string) []byte {
	m, ok := Find(b, i, name)
	if !ok || b[m.Value] != '"' {
		return nil
	}
	return Unquote(b[m.Value:m.End])
}

// EachObject calls f for every object in an array.
func EachObject(array []byte, f func([]byte)) {
	if len(array) == 0 || array[0] != '[' {
		return
	}
	s := Scanner{Text: array}
	for i := s.Space(1); i < len(array) && array[i] != ']'; {
		end, err := s.Value(i, 0)
		if err != nil {
			return
		}
		if array[i] == '{' {
			f(array[i:end])
		}
		if i = s.Space(end); i < len(array) && array[i] == ',' {
			i = s.Space(i + 1)
		}
	}
}

// TopLevel finds the value of a top-level field in a JSON object, as the bytes
// that are there, nil if absent or null. Of duplicate keys the last counts.
// It is for answers of engines: the error says what is wrong with them.
func TopLevel(object []byte, name string) ([]byte, error) {
	s := Scanner{Text: object}
	i := s.Space(0)
	if i >= len(object) || object[i] != '{' {
		return nil, errors.New("not an object")
	}
	var raw []byte
	end, err := s.Members(i, 0, func(m Member) error {
		if string(Unquote(object[m.Key:m.KeyEnd])) == name {
			raw = object[m.Value:m.End]
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if end = s.Space(end); end != len(object) {
		return nil, ErrorAt(end, ExtraData)
	}
	if raw != nil && IsNull(raw) {
		return nil, nil
	}
	return raw, nil
}

// Replaced returns b with b[start:end] replaced; b itself is not changed.
func Replaced(b []byte, start, end int, by []byte) []byte {
	return slices.Concat(b[:start], by, b[end:])
}

// Replace returns a JSON object with another value for a member that it has; without
// that member it stays as it is. b itself is not changed.
func Replace(b []byte, name, value string) []byte {
	open := bytes.IndexByte(b, '{')
	if open < 0 {
		return b
	}
	m, ok := Find(b, open, name)
	if !ok {
		return b
	}
	return Replaced(b, m.Value, m.End, []byte(value))
}
