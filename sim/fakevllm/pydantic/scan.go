package pydantic

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"
)

// errJSON is wrapped by every complaint about malformed JSON.
var errJSON = errors.New("JSON decode error")

// ForEachMember calls fn for each member of a JSON object in order, with the
// raw bytes of its value. It finds where values end but leaves it to fn to
// validate them; everything else about the object is checked. Duplicates are
// passed on: whatever assigns in order keeps the last, as Python's json does.
func ForEachMember(body []byte, fn func(key string, raw []byte) error) error {
	i := SkipSpace(body, 0)
	if i >= len(body) || body[i] != '{' {
		return fmt.Errorf("%w: expecting an object", errJSON)
	}
	i = SkipSpace(body, i+1)
	if i < len(body) && body[i] == '}' {
		return trailing(body, i+1)
	}
	for {
		if i >= len(body) || body[i] != '"' {
			return fmt.Errorf("%w at %d: expecting property name enclosed in double quotes", errJSON, i)
		}
		end, err := stringEnd(body, i)
		if err != nil {
			return err
		}
		key, err := Unquote(body[i:end])
		if err != nil {
			return err
		}
		i = SkipSpace(body, end)
		if i >= len(body) || body[i] != ':' {
			return fmt.Errorf("%w at %d: expecting ':' delimiter", errJSON, i)
		}
		i = SkipSpace(body, i+1)
		end, err = valueEnd(body, i)
		if err != nil {
			return err
		}
		if err := fn(key, body[i:end]); err != nil {
			return err
		}
		i = SkipSpace(body, end)
		switch {
		case i < len(body) && body[i] == ',':
			i = SkipSpace(body, i+1)
		case i < len(body) && body[i] == '}':
			return trailing(body, i+1)
		default:
			return fmt.Errorf("%w at %d: expecting ',' delimiter", errJSON, i)
		}
	}
}

// ForEachElement is forEachMember for a list.
func ForEachElement(raw []byte, fn func(i int, raw []byte) error) error {
	i := SkipSpace(raw, 1)
	if i < len(raw) && raw[i] == ']' {
		return trailing(raw, i+1)
	}
	for n := 0; ; n++ {
		end, err := valueEnd(raw, i)
		if err != nil {
			return err
		}
		if err := fn(n, raw[i:end]); err != nil {
			return err
		}
		i = SkipSpace(raw, end)
		switch {
		case i < len(raw) && raw[i] == ',':
			i = SkipSpace(raw, i+1)
		case i < len(raw) && raw[i] == ']':
			return trailing(raw, i+1)
		default:
			return fmt.Errorf("%w at %d: expecting ',' delimiter", errJSON, i)
		}
	}
}

// Validate checks one value that forEachMember or forEachElement found.
func Validate(raw []byte) error {
	if raw[0] == '"' {
		_, err := Unquote(raw)
		return err
	}
	if !json.Valid(raw) && Explain(raw) != nil { // Python takes NaN
		return fmt.Errorf("%w: expecting value", errJSON)
	}
	return nil
}

func trailing(body []byte, i int) error {
	if i = SkipSpace(body, i); i < len(body) {
		return fmt.Errorf("%w at %d: extra data", errJSON, i)
	}
	return nil
}

func SkipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\r' || b[i] == '\t') {
		i++
	}
	return i
}

// stringEnd is the index after the closing quote of the string at b[i].
func stringEnd(b []byte, i int) (int, error) {
	start := i
	for i++; ; {
		j := bytes.IndexByte(b[i:], '"')
		if j < 0 {
			return 0, fmt.Errorf("%w at %d: unterminated string", errJSON, start)
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

// valueEnd is the index after the value at b[i], found by quotes and brackets.
func valueEnd(b []byte, i int) (int, error) {
	if i >= len(b) {
		return 0, fmt.Errorf("%w at %d: expecting value", errJSON, i)
	}
	switch b[i] {
	case '"':
		return stringEnd(b, i)
	case '[', '{':
		depth := 0
		for i < len(b) {
			switch b[i] {
			case '"':
				end, err := stringEnd(b, i)
				if err != nil {
					return 0, err
				}
				i = end
				continue
			case '[', '{':
				depth++
			case ']', '}':
				if depth--; depth == 0 {
					return i + 1, nil
				}
			}
			i++
		}
		return 0, fmt.Errorf("%w at %d: unterminated value", errJSON, i)
	}
	start := i
	for i < len(b) && !endsScalar(b[i]) {
		i++
	}
	if i == start {
		return 0, fmt.Errorf("%w at %d: expecting value", errJSON, i)
	}
	return i, nil
}

func endsScalar(c byte) bool {
	switch c {
	case ',', '}', ']', ' ', '\n', '\r', '\t':
		return true
	}
	return false
}

// Unquote decodes a JSON string literal; plain ones without going through
// encoding/json, which matters for prompts of a megabyte.
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

// ScanInts parses a flat list of plain non-negative integers, the usual form
// of a prompt of token ids. ok is false for anything else, right or wrong.
func ScanInts(raw []byte, dst []int) (ids []int, ok bool) {
	if len(raw) < 2 || raw[0] != '[' {
		return nil, false
	}
	i := SkipSpace(raw, 1)
	if i < len(raw) && raw[i] == ']' {
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
		if i < len(raw) && raw[i] == ',' {
			i++
			if i < len(raw) && raw[i] <= ' ' {
				i = SkipSpace(raw, i)
			}
			continue
		}
		i = SkipSpace(raw, i)
		if i >= len(raw) {
			return nil, false
		}
		switch raw[i] {
		case ',':
			i = SkipSpace(raw, i+1)
		case ']':
			return dst, i+1 == len(raw)
		default:
			return nil, false
		}
	}
}
