package http1

import (
	"bytes"
	"fmt"
	"strconv"
)

// IsToken reports the bytes of a field name or a method (RFC 9110, 5.6.2). It runs for
// every byte of every name, so it looks the byte up in two sets of bits, without
// branches.
func IsToken(b byte) bool {
	const (
		digits  = 1<<10 - 1
		letters = 1<<26 - 1
		low     = digits<<'0' | 1<<'!' | 1<<'#' | 1<<'$' | 1<<'%' | 1<<'&' | 1<<'\'' | 1<<'*' | 1<<'+' | 1<<'-' | 1<<'.'
		high    = letters<<('A'-64) | letters<<('a'-64) | 1<<('^'-64) | 1<<('_'-64) | 1<<('`'-64) | 1<<('|'-64) | 1<<('~'-64)
	)
	set := uint64(low)
	if b >= 64 {
		set = high
	}
	return b < 128 && set>>(b&63)&1 != 0
}

// isValue reports the bytes that a field's value may hold (RFC 9110, 5.5).
func isValue(b byte) bool { return b >= ' ' && b != 0x7f || b == '\t' }

// trim takes the blanks off both ends of a value.
func trim(value []byte) []byte {
	for len(value) > 0 && isBlank(value[0]) {
		value = value[1:]
	}
	for len(value) > 0 && isBlank(value[len(value)-1]) {
		value = value[:len(value)-1]
	}
	return value
}

func isBlank(b byte) bool { return b == ' ' || b == '\t' }

// EqualFold compares with a word in lower case, by the case of ASCII letters only. For
// bytes.EqualFold the Kelvin sign is a k, but another reader would not take a field
// spelled with it for a length or an encoding (TestFieldsRefused).
func EqualFold[T string | []byte](s T, lower string) bool {
	if len(s) != len(lower) {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}

// ParseLength reads a Content-Length. It takes digits only, at most 18 of them, which
// fit into an int64.
func ParseLength[T string | []byte](digits T) (n int64, ok bool) {
	if len(digits) == 0 || len(digits) > 18 {
		return 0, false
	}
	for i := range len(digits) {
		d := digits[i] - '0'
		if d > 9 {
			return 0, false
		}
		n = 10*n + int64(d)
	}
	return n, true
}

// AppendField writes a field's line. A byte that could end the line early is an error,
// which leaves b as it was. The error does not show the value, which may be a key.
func AppendField(b []byte, name, value string) ([]byte, error) {
	if name == "" {
		return b, fmt.Errorf("%w: it is empty", ErrName)
	}
	for i := range len(name) {
		if !IsToken(name[i]) {
			return b, fmt.Errorf("%w: %q", ErrName, name)
		}
	}
	for i := range len(value) {
		if !isValue(value[i]) {
			return b, fmt.Errorf("%w: %s", ErrValue, name)
		}
	}
	b = append(b, name...)
	b = append(b, ": "...)
	b = append(b, value...)
	return append(b, "\r\n"...), nil
}

// AppendLength writes the line of a Content-Length.
func AppendLength(b []byte, n int64) []byte {
	b = append(b, "Content-Length: "...)
	b = strconv.AppendInt(b, n, 10)
	return append(b, "\r\n"...)
}

// NextField splits the first line off fields, whose lines end in CR LF, and checks it.
// The value is without the blanks around it.
func NextField(fields []byte) (name, value, rest []byte, err error) {
	nl := bytes.IndexByte(fields, '\n')
	if nl < 1 || fields[nl-1] != '\r' {
		return nil, nil, nil, ErrBareLF
	}
	line, rest := fields[:nl-1], fields[nl+1:]
	colon := bytes.IndexByte(line, ':')
	switch {
	case len(line) > 0 && isBlank(line[0]):
		return nil, nil, nil, ErrFold
	case colon <= 0:
		return nil, nil, nil, ErrName
	}
	name, value = line[:colon], line[colon+1:]
	for _, c := range name {
		if !IsToken(c) {
			return nil, nil, nil, ErrName
		}
	}
	for _, c := range value {
		if !isValue(c) {
			return nil, nil, nil, ErrValue
		}
	}
	return name, trim(value), rest, nil
}
