package openai

import (
	"bytes"
	"errors"
	"math"
	"strconv"
	"strings"
)

// vLLM reads requests through pydantic in its lax mode: 5.0 and "5" are
// integers, "true" and 1 are booleans. What it would take must not fail here.

var errNotInt = errors.New("Input should be a valid integer")       //nolint:staticcheck // vLLM's wording
var errNotBool = errors.New("Input should be a valid boolean")      //nolint:staticcheck // vLLM's wording
var errNotString = errors.New("Input should be a valid string")     //nolint:staticcheck // vLLM's wording
var errNotList = errors.New("Input should be a valid list")         //nolint:staticcheck // vLLM's wording
var errNotObject = errors.New("Input should be a valid dictionary") //nolint:staticcheck // vLLM's wording

func isNull(raw []byte) bool { return len(raw) == 4 && raw[0] == 'n' }

// laxInt reads an integer value; ok is false for null.
func laxInt(raw []byte) (v int64, ok bool, err error) {
	switch {
	case isNull(raw):
		return 0, false, nil
	case raw[0] == 't':
		return 1, true, nil
	case raw[0] == 'f':
		return 0, true, nil
	case raw[0] == '"':
		raw = bytes.TrimSpace(unquote(raw))
	case raw[0] == '{' || raw[0] == '[':
		return 0, false, errNotInt
	}
	if v, err = strconv.ParseInt(string(raw), 10, 64); err == nil {
		return v, true, nil
	}
	if errors.Is(err, strconv.ErrRange) {
		// Larger than any engine takes, but an integer: saturate and let the
		// engine say so.
		if raw[0] == '-' {
			return math.MinInt64, true, nil
		}
		return math.MaxInt64, true, nil
	}
	f, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) > 1<<62 || !startsNumeric(raw) {
		return 0, false, errNotInt
	}
	return int64(f), true, nil
}

// startsNumeric keeps "inf", "nan" and hexadecimal floats out.
func startsNumeric(raw []byte) bool {
	return len(raw) > 0 && (raw[0] == '-' || raw[0] == '+' || (raw[0] >= '0' && raw[0] <= '9')) &&
		!bytes.ContainsAny(raw, "xX_")
}

// laxBool reads a boolean value; null is false.
func laxBool(raw []byte) (bool, error) {
	if isNull(raw) {
		return false, nil
	}
	text := string(raw)
	if raw[0] == '"' {
		text = string(unquote(raw))
	}
	switch strings.ToLower(text) {
	case "true", "t", "yes", "y", "on", "1", "1.0":
		return true, nil
	case "false", "f", "no", "n", "off", "0", "0.0":
		return false, nil
	}
	return false, errNotBool
}
