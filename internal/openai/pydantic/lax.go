package pydantic

import (
	"bytes"
	"errors"
	"math"
	"strconv"
	"strings"

	"github.com/pdmesh/pdmesh/internal/openai/jsonscan"
)

// vLLM reads requests through pydantic in its lax mode: 5.0 and "5" are
// integers, "true" and 1 are booleans. What it would take must not fail here.

// Int reads an integer value; ok is false for null.
func Int(raw []byte) (v int64, ok bool, why *Complaint) {
	switch {
	case jsonscan.IsNull(raw):
		return 0, false, nil
	case raw[0] == 't':
		return 1, true, nil
	case raw[0] == 'f':
		return 0, true, nil
	case raw[0] == '"':
		if v, ok = number(bytes.TrimSpace(jsonscan.Unquote(raw))); !ok {
			return 0, false, errIntText
		}
		return v, true, nil
	case raw[0] == '{' || raw[0] == '[':
		return 0, false, ErrIntType
	}
	if v, ok = number(raw); ok {
		return v, true, nil
	}
	switch f, err := strconv.ParseFloat(string(raw), 64); {
	case err != nil:
		return 0, false, errIntInfinite
	case f != math.Trunc(f):
		return 0, false, errIntFraction
	}
	return 0, false, errIntSize
}

// number reads a whole number that may be written with a point or an exponent.
func number(raw []byte) (int64, bool) {
	v, err := strconv.ParseInt(string(raw), 10, 64)
	if err == nil {
		return v, true
	}
	if errors.Is(err, strconv.ErrRange) {
		// Larger than any engine takes, but an integer: saturate and let the
		// engine say so.
		if raw[0] == '-' {
			return math.MinInt64, true
		}
		return math.MaxInt64, true
	}
	f, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) > 1<<62 || !startsNumeric(raw) {
		return 0, false
	}
	return int64(f), true
}

// startsNumeric keeps "inf", "nan" and hexadecimal floats out.
func startsNumeric(raw []byte) bool {
	return len(raw) > 0 && (raw[0] == '-' || raw[0] == '+' || (raw[0] >= '0' && raw[0] <= '9')) &&
		!bytes.ContainsAny(raw, "xX_")
}

// Bool reads a boolean value; null is false.
func Bool(raw []byte) (bool, *Complaint) {
	if jsonscan.IsNull(raw) {
		return false, nil
	}
	text := string(raw)
	if raw[0] == '"' {
		text = string(jsonscan.Unquote(raw))
	}
	switch strings.ToLower(text) {
	case "true", "t", "yes", "y", "on", "1", "1.0":
		return true, nil
	case "false", "f", "no", "n", "off", "0", "0.0":
		return false, nil
	}
	if raw[0] == '[' || raw[0] == '{' || raw[0] != '"' && bytes.ContainsAny(raw, ".eE") {
		return false, ErrBoolType
	}
	return false, errBoolText
}

// Truthy is Python's opinion of a value, which some of vLLM's checks go by.
func Truthy(raw []byte) bool {
	switch {
	case raw == nil || jsonscan.IsNull(raw) || raw[0] == 'f':
		return false
	case raw[0] == '{' || raw[0] == '[':
		s := jsonscan.Scanner{Text: raw}
		return s.Space(1) < len(raw)-1
	case raw[0] == '"':
		return len(raw) > 2
	case raw[0] == 't':
		return true
	}
	f, err := strconv.ParseFloat(string(raw), 64)
	return err != nil || f != 0
}
