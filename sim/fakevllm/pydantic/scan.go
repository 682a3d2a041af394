package pydantic

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// errJSON is wrapped by every error about malformed JSON.
var errJSON = errors.New("JSON decode error")

func malformed(at int, expected string) error {
	return fmt.Errorf("%w at %d: expecting %s", errJSON, at, expected)
}

// at returns the byte at i, or 0 past the end.
func at(b []byte, i int) byte {
	if i < len(b) {
		return b[i]
	}
	return 0
}

// ForEachMember calls fn for each member of a JSON object in order, with the raw bytes of its
// value, which it delimits but leaves to fn to validate. Duplicates are passed on: whatever
// assigns in order keeps the last, as Python's json does.
func ForEachMember(body []byte, fn func(key string, raw []byte) error) error {
	i := SkipSpace(body, 0)
	if at(body, i) != '{' {
		return malformed(i, "an object")
	}
	if i = SkipSpace(body, i+1); at(body, i) == '}' {
		return trailing(body, i+1)
	}
	for {
		if at(body, i) != '"' {
			return malformed(i, "a property name in double quotes")
		}
		end, err := stringEnd(body, i)
		if err != nil {
			return err
		}
		key, err := Unquote(body[i:end])
		if err != nil {
			return err
		}
		if i = SkipSpace(body, end); at(body, i) != ':' {
			return malformed(i, "':'")
		}
		i = SkipSpace(body, i+1)
		if end, err = valueEnd(body, i); err == nil {
			err = fn(key, body[i:end])
		}
		if err != nil {
			return err
		}
		switch i = SkipSpace(body, end); at(body, i) {
		case ',':
			i = SkipSpace(body, i+1)
		case '}':
			return trailing(body, i+1)
		default:
			return malformed(i, "','")
		}
	}
}

// Members returns the members of a JSON object. With duplicates the last counts.
func Members(object []byte) (map[string][]byte, error) {
	members := make(map[string][]byte, 16)
	err := ForEachMember(object, func(key string, raw []byte) error { members[key] = raw; return nil })
	return members, err
}

// ForEachElement is ForEachMember for a list.
func ForEachElement(raw []byte, fn func(i int, raw []byte) error) error {
	i := SkipSpace(raw, 1)
	if at(raw, i) == ']' {
		return trailing(raw, i+1)
	}
	for n := 0; ; n++ {
		end, err := valueEnd(raw, i)
		if err == nil {
			err = fn(n, raw[i:end])
		}
		if err != nil {
			return err
		}
		switch i = SkipSpace(raw, end); at(raw, i) {
		case ',':
			i = SkipSpace(raw, i+1)
		case ']':
			return trailing(raw, i+1)
		default:
			return malformed(i, "','")
		}
	}
}

// Validate reports whether one value that ForEachMember or ForEachElement delimited is JSON as
// Python takes it, NaN and the infinities included.
func Validate(raw []byte) error {
	if at(raw, 0) == '"' {
		if end, err := stringEnd(raw, 0); err != nil || end != len(raw) {
			return errors.Join(err, trailing(raw, end))
		}
		_, err := Unquote(raw)
		return err
	}
	if json.Valid(raw) {
		return nil
	}
	switch string(raw) {
	case "NaN", "Infinity", "-Infinity":
		return nil
	}
	switch at(raw, 0) {
	case '{':
		return ForEachMember(raw, func(_ string, raw []byte) error { return Validate(raw) })
	case '[':
		return ForEachElement(raw, func(_ int, raw []byte) error { return Validate(raw) })
	}
	return fmt.Errorf("%w: expecting a value", errJSON)
}

func trailing(body []byte, i int) error {
	if i = SkipSpace(body, i); i < len(body) {
		return malformed(i, "the end")
	}
	return nil
}

// SkipSpace returns the index of the first byte from i on that is no white space.
func SkipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\r' || b[i] == '\t') {
		i++
	}
	return i
}

// stringEnd returns the index after the closing quote of the string at b[i].
func stringEnd(b []byte, i int) (int, error) {
	start := i
	for i++; ; {
		j := bytes.IndexByte(b[i:], '"')
		if j < 0 {
			return 0, malformed(start, "a terminated string")
		}
		slashes := 0
		for k := i + j - 1; k > start && b[k] == '\\'; k-- {
			slashes++
		}
		i += j + 1
		if slashes%2 == 0 {
			return i, nil
		}
	}
}

// valueEnd returns the index after the value at b[i], found by quotes and brackets.
func valueEnd(b []byte, i int) (end int, err error) {
	start, depth := i, 0
	for i < len(b) {
		switch b[i] {
		case '"':
			if i, err = stringEnd(b, i); err != nil || depth == 0 {
				return i, err
			}
			continue
		case '[', '{':
			depth++
		case ']', '}':
			if depth--; depth == 0 {
				return i + 1, nil
			}
		}
		if depth <= 0 {
			break
		}
		i++
	}
	for depth <= 0 && i < len(b) && strings.IndexByte(",}] \n\r\t", b[i]) < 0 {
		i++
	}
	if i == start || depth > 0 {
		return 0, malformed(i, "a value")
	}
	return i, nil
}

// Unquote decodes a JSON string literal. It takes the short way for those without escapes:
// prompts may have a megabyte.
func Unquote(raw []byte) (string, error) {
	in := raw[1 : len(raw)-1]
	plain := bytes.IndexByte(in, '\\') < 0
	for _, c := range in {
		if c < 0x20 {
			return "", fmt.Errorf("%w: invalid control character in string", errJSON)
		}
	}
	if plain && utf8.Valid(in) {
		return string(in), nil
	}
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		return "", fmt.Errorf("%w: %w", errJSON, err)
	}
	return s, nil
}

// ScanInts parses a flat list of plain non-negative integers, the usual form of a prompt of
// token ids. ok is false for anything else, valid or not.
func ScanInts(raw []byte, dst []int) (ids []int, ok bool) {
	if len(raw) < 2 || raw[0] != '[' {
		return nil, false
	}
	i := SkipSpace(raw, 1)
	if at(raw, i) == ']' {
		return dst, i+1 == len(raw)
	}
	for {
		start, n := i, 0
		for i < len(raw) && raw[i]-'0' <= 9 {
			n = n*10 + int(raw[i]-'0')
			i++
		}
		digits := i - start
		if digits == 0 || digits > 18 || digits > 1 && raw[start] == '0' {
			return nil, false
		}
		dst = append(dst, n)
		switch i = SkipSpace(raw, i); at(raw, i) {
		case ',':
			i = SkipSpace(raw, i+1)
		case ']':
			return dst, i+1 == len(raw)
		default:
			return nil, false
		}
	}
}
