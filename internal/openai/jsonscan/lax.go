package jsonscan

import (
	"bytes"
	"errors"
	"math"
	"strconv"
	"strings"
)

// vLLM reads requests through pydantic in its lax mode: 5.0, "5" and "5_0" are integers, "true",
// 1 and 1e0 are booleans. The functions of this file accept the same values.

var (
	errInt  = errors.New("must be an integer")
	errBool = errors.New("must be a boolean")
)

// LaxInt reads an integer. ok is false for null. A number beyond the range of int64 that is
// spelled as an integer becomes the nearest int64: engines refuse it themselves.
func LaxInt(raw []byte) (v int64, ok bool, err error) {
	switch {
	case IsNull(raw):
		return 0, false, nil
	case raw[0] == 't':
		return 1, true, nil
	case raw[0] == 'f':
		return 0, true, nil
	case raw[0] == '"':
		raw = bytes.ReplaceAll(bytes.TrimSpace(Unquote(raw)), []byte("_"), nil)
	}
	if v, ok = wholeNumber(raw); !ok {
		return 0, false, errInt
	}
	return v, true, nil
}

// wholeNumber reads a whole number, which may have a decimal point or an exponent.
func wholeNumber(raw []byte) (int64, bool) {
	v, err := strconv.ParseInt(string(raw), 10, 64)
	if err == nil {
		return v, true
	}
	if errors.Is(err, strconv.ErrRange) {
		if raw[0] == '-' {
			return math.MinInt64, true
		}
		return math.MaxInt64, true
	}
	f, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) >= 1<<63 || !startsNumeric(raw) {
		return 0, false
	}
	return int64(f), true
}

// startsNumeric excludes "inf", "nan" and hexadecimal floats.
func startsNumeric(raw []byte) bool {
	return len(raw) > 0 && (raw[0] == '-' || raw[0] == '+' || (raw[0] >= '0' && raw[0] <= '9')) &&
		!bytes.ContainsAny(raw, "xX")
}

// LaxBool reads a boolean; null is false.
func LaxBool(raw []byte) (bool, error) {
	if IsNull(raw) {
		return false, nil
	}
	text := string(raw)
	if raw[0] == '"' {
		text = string(Unquote(raw))
	} else if f, err := strconv.ParseFloat(text, 64); err == nil && (f == 0 || f == 1) {
		return f == 1, nil
	}
	switch strings.ToLower(text) {
	case "true", "t", "yes", "y", "on", "1":
		return true, nil
	case "false", "f", "no", "n", "off", "0":
		return false, nil
	}
	return false, errBool
}

// Truthy reports whether Python treats a value as true, as some of vLLM's checks do. A nil value is false.
func Truthy(raw []byte) bool {
	switch {
	case raw == nil || IsNull(raw) || raw[0] == 'f':
		return false
	case raw[0] == '{' || raw[0] == '[':
		s := Scanner{Text: raw}
		return s.Space(1) < len(raw)-1
	case raw[0] == '"':
		return len(raw) > 2
	case raw[0] == 't':
		return true
	}
	f, err := strconv.ParseFloat(string(raw), 64)
	return err != nil || f != 0
}
