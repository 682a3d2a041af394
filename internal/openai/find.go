package openai

import (
	"bytes"
	"errors"
)

// findMember finds a member of the object that begins at i; of duplicates the last.
func findMember(b []byte, i int, name string) (found member, ok bool) {
	s := scanner{b: b}
	if i = s.space(i); i >= len(b) || b[i] != '{' {
		return member{}, false
	}
	_, err := s.members(i, 0, func(m member) error {
		if string(unquote(b[m.key:m.keyEnd])) == name {
			found, ok = m, true
		}
		return nil
	})
	return found, ok && err == nil
}

// eachObject calls f for every object in an array.
func eachObject(array []byte, f func([]byte)) {
	if len(array) == 0 || array[0] != '[' {
		return
	}
	s := scanner{b: array}
	for i := s.space(1); i < len(array) && array[i] != ']'; {
		end, err := s.value(i, 0)
		if err != nil {
			return
		}
		if array[i] == '{' {
			f(array[i:end])
		}
		if i = s.space(end); i < len(array) && array[i] == ',' {
			i = s.space(i + 1)
		}
	}
}

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

// replaced gives b with b[start:end] replaced; b itself is not changed.
func replaced(b []byte, start, end int, by []byte) []byte {
	out := make([]byte, 0, len(b)-(end-start)+len(by))
	out = append(out, b[:start]...)
	out = append(out, by...)
	return append(out, b[end:]...)
}

// Replace gives a JSON object with another value for a member that it has; without
// that member it stays as it is. b itself is not changed.
func Replace(b []byte, name, value string) []byte {
	open := bytes.IndexByte(b, '{')
	if open < 0 {
		return b
	}
	m, ok := findMember(b, open, name)
	if !ok {
		return b
	}
	return replaced(b, m.val, m.end, []byte(value))
}
