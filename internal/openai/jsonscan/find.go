package jsonscan

import (
	"bytes"
	"errors"
	"slices"
)

// EachMember calls f for every member of the object that begins at i, with the text of its
// name. If the object is invalid, EachMember calls f for the members before the error.
func EachMember(b []byte, i int, f func(name []byte, m Member)) error {
	s := Scanner{Text: b}
	_, err := s.Members(s.Space(i), 0, func(m Member) error {
		f(Unquote(b[m.Key:m.KeyEnd]), m)
		return nil
	})
	return err
}

// Find returns a member of the object that begins at i. With several names, each is the
// name of a member in the value of the one before. Of duplicates, the last one counts.
func Find(b []byte, i int, path ...string) (found Member, ok bool) {
	for _, name := range path {
		s := Scanner{Text: b}
		if i = s.Space(i); i >= len(b) || b[i] != '{' {
			return Member{}, false
		}
		ok = false
		err := EachMember(b, i, func(key []byte, m Member) {
			if string(key) == name {
				found, ok = m, true
			}
		})
		if !ok || err != nil {
			return Member{}, false
		}
		i = found.Value
	}
	return found, ok
}

// Value returns the value of the member that Find returns, nil if there is none.
func Value(b []byte, i int, path ...string) []byte {
	m, ok := Find(b, i, path...)
	if !ok {
		return nil
	}
	return b[m.Value:m.End]
}

// FindText returns the text of the member that Find returns, nil if there is none, or if it
// is not a string. It may share the bytes of b.
func FindText(b []byte, i int, path ...string) []byte {
	raw := Value(b, i, path...)
	if raw == nil || raw[0] != '"' {
		return nil
	}
	return Unquote(raw)
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

// TopLevel returns the value of a top-level field in a JSON object, as sent; nil if absent
// or null. Of duplicate keys, the last one counts. It is for answers of engines: the error
// describes what is wrong with them.
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

// AppendUints appends the numbers of a list to out. It returns false if b is not a list of
// integers from 0 to 2^32-1.
func AppendUints(out []uint32, b []byte) ([]uint32, bool) {
	if len(b) < 2 || b[0] != '[' {
		return nil, false
	}
	in, n := false, uint64(0)
	for _, c := range b[1:] {
		switch {
		case c >= '0' && c <= '9':
			if n = n*10 + uint64(c-'0'); n > 1<<32-1 {
				return nil, false
			}
			in = true
		case (c == ',' || c == ']') && in:
			out = append(out, uint32(n))
			in, n = false, 0
		case c == ']', c == ' ' && !in, c == '\n' && !in:
		default:
			return nil, false
		}
	}
	return out, true
}

// Replaced returns b with b[start:end] replaced; b itself is not changed.
func Replaced(b []byte, start, end int, by []byte) []byte {
	return slices.Concat(b[:start], by, b[end:])
}

// Replace returns a JSON object with another value for an existing member; without that
// member, it returns b. b itself is not changed.
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
