package http1

import (
	"bytes"
	"fmt"
	"strconv"
)

// IsToken reports whether a byte may occur in a field name or a method (RFC 9110, 5.6.2).
// It runs for every byte of every name, so it tests two bit sets without branches.
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

// isValue reports whether a byte may occur in a field's value (RFC 9110, 5.5).
func isValue(b byte) bool { return b >= ' ' && b != 0x7f || b == '\t' }

// trim removes spaces and tabs from both ends of a value.
func trim(value []byte) []byte { return bytes.Trim(value, " \t") }

func isBlank(b byte) bool { return b == ' ' || b == '\t' }

// equalFold reports whether a field equals a lower-case word, ignoring the case of ASCII
// letters only. bytes.EqualFold treats the Kelvin sign as a k, but other parsers do not
// (TestAnswersRefused in package upstream).
func equalFold(s []byte, lower string) bool {
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

// parseLength parses a Content-Length. It accepts 1 to 18 digits, which fit into an int64.
func parseLength(digits []byte) (n int64, ok bool) {
	u, err := strconv.ParseUint(string(digits), 10, 63)
	return int64(u), err == nil && len(digits) <= 18
}

// AppendField appends a field line to b. A byte that could end the line early is an error,
// and b is returned unchanged. The error does not contain the value, which may be a secret.
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

// AppendLength appends a Content-Length line to b.
func AppendLength(b []byte, n int64) []byte {
	b = append(b, "Content-Length: "...)
	b = strconv.AppendInt(b, n, 10)
	return append(b, "\r\n"...)
}

// nextField splits the first line off fields, whose lines end in CR LF, and validates it.
// The value is returned without surrounding spaces and tabs.
func nextField(fields []byte) (name, value, rest []byte, err error) {
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
