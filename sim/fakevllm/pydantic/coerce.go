// Package pydantic reads JSON bodies and the values in them as vLLM's request models do, and
// renders vLLM's error responses.
package pydantic

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// notFinite matches strings, and the numbers that Python's json reads besides those of JSON.
var notFinite = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|\bNaN\b|-?\bInfinity\b`)

// Validate returns a body that is JSON. NaN and the infinities become numbers that no float64 can
// hold.
func Validate(body []byte) ([]byte, error) {
	if json.Valid(body) {
		return body, nil
	}
	body = notFinite.ReplaceAllFunc(body, func(token []byte) []byte {
		if token[0] == '"' {
			return token
		}
		return []byte("1e999")
	})
	if !json.Valid(body) {
		return nil, Invalid("", "JSON decode error")
	}
	return body, nil
}

// Members returns the members of a body that is a JSON object. With duplicates the last counts.
func Members(body []byte) (members map[string]json.RawMessage, err error) {
	if body, err = Validate(body); err == nil {
		members, err = Object("", body)
	}
	return members, err
}

// The functions below convert JSON values as pydantic's lax mode does for request models:
// "5", 5.0 and true are integers, "yes" and 1 are booleans, but a number is no string. loc is
// the dotted path of the value in the body.

// IsNull reports whether a JSON value is null or absent.
func IsNull(raw []byte) bool { return len(raw) == 0 || string(raw) == "null" }

// Truthy reports whether Python takes a JSON value for true. Several of vLLM's checks run
// before types are converted.
func Truthy(raw []byte) bool {
	switch string(raw) {
	case "", "null", "false", `""`:
		return false
	}
	if f, err := strconv.ParseFloat(string(raw), 64); err == nil && f == 0 {
		return false
	}
	return raw[0] != '[' && raw[0] != '{' || len(bytes.TrimSpace(raw[1:len(raw)-1])) > 0
}

// Text decodes a string, "" for anything else.
func Text(raw []byte) (s string) {
	_ = json.Unmarshal(raw, &s) // anything else leaves it empty
	return s
}

// number returns the text of a number or of a string that may be one; true is 1.
func number(raw []byte) string {
	switch raw[0] {
	case 't':
		return "1"
	case 'f':
		return "0"
	case '"':
		return strings.ReplaceAll(strings.TrimSpace(Text(raw)), "_", "")
	}
	return string(raw)
}

// Int converts an integer.
func Int(loc string, raw []byte) (int, error) {
	text := number(raw)
	if whole, frac, ok := strings.Cut(text, "."); ok && strings.Trim(frac, "0") == "" {
		text = whole
	}
	if n, err := strconv.Atoi(text); err == nil {
		return n, nil
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || raw[0] == '"' || f != math.Trunc(f) || math.Abs(f) >= 1<<63 {
		return 0, Invalid(loc, "Input should be a valid integer")
	}
	return int(f), nil
}

// Float converts a number, also one that is out of range.
func Float(loc string, raw []byte) (float64, error) {
	f, err := strconv.ParseFloat(number(raw), 64)
	if err != nil && !math.IsInf(f, 0) {
		return 0, Invalid(loc, "Input should be a valid number")
	}
	return f, nil
}

// Bool converts a boolean.
func Bool(loc string, raw []byte) (bool, error) {
	text := string(raw)
	yes, no := []string{"true"}, []string{"false"}
	if raw[0] == '"' {
		text = strings.ToLower(Text(raw))
		yes, no = []string{"true", "1", "on", "t", "y", "yes"}, []string{"false", "0", "off", "f", "n", "no"}
	} else if f, err := strconv.ParseFloat(text, 64); err == nil && (f == 0 || f == 1) {
		return f == 1, nil
	}
	is := slices.Contains(yes, text)
	if !is && !slices.Contains(no, text) {
		return false, Invalid(loc, "Input should be a valid boolean")
	}
	return is, nil
}

// String decodes a string.
func String(loc string, raw []byte) (string, error) {
	switch {
	case len(raw) == 0:
		return "", Missing(loc)
	case raw[0] != '"':
		return "", Invalid(loc, "Input should be a valid string")
	}
	return Text(raw), nil
}

// OneOf reports an error unless a value is one of these strings.
func OneOf(loc string, raw []byte, allowed ...string) error {
	s, err := String(loc, raw)
	if err == nil && !slices.Contains(allowed, s) {
		err = Invalid(loc, "Input should be one of "+strings.Join(allowed, ", "))
	}
	return err
}

// RawList splits a list.
func RawList(loc string, raw []byte) (list []json.RawMessage, err error) {
	if json.Unmarshal(raw, &list) != nil || list == nil {
		err = Invalid(loc, "Input should be a valid list")
	}
	return list, err
}

// Ints converts a list of integers.
func Ints(loc string, raw []byte) ([]int, error) {
	// The usual list of token ids, each of which takes about six bytes.
	ids := make([]int, 0, len(raw)/6+1)
	for text := range bytes.SplitSeq(bytes.TrimSuffix(bytes.TrimPrefix(raw, []byte("[")), []byte("]")), []byte(",")) {
		id, err := strconv.Atoi(string(bytes.TrimSpace(text)))
		if err != nil || raw[0] != '[' {
			return each(loc, raw, Int)
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// Strings decodes a list of strings.
func Strings(loc string, raw []byte) ([]string, error) { return each(loc, raw, String) }

func each[T any](loc string, raw []byte, convert func(string, []byte) (T, error)) ([]T, error) {
	list, err := RawList(loc, raw)
	if err != nil {
		return nil, err
	}
	out := make([]T, len(list))
	for i, item := range list {
		if out[i], err = convert(fmt.Sprintf("%s.%d", loc, i), item); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Object returns the members of an object.
func Object(loc string, raw []byte) (members map[string]json.RawMessage, err error) {
	switch {
	case len(raw) == 0:
		err = Missing(loc)
	case json.Unmarshal(raw, &members) != nil || members == nil:
		err = Invalid(loc, "Input should be a valid dictionary")
	}
	return members, err
}

// Into converts a value that is not null to the type that into points to; a *[]byte takes the
// raw text of an object.
func Into(into any, loc string, raw []byte) (err error) {
	switch p := into.(type) {
	case *int:
		*p, err = Int(loc, raw)
	case **int:
		*p = new(int)
		**p, err = Int(loc, raw)
	case *float64:
		*p, err = Float(loc, raw)
	case *bool:
		*p, err = Bool(loc, raw)
	case *string:
		*p, err = String(loc, raw)
	case *[]int:
		*p, err = Ints(loc, raw)
	case *[]string:
		*p, err = Strings(loc, raw)
	case *[]byte:
		*p = raw
		_, err = Object(loc, raw)
	default:
		panic(fmt.Sprintf("no conversion to %T", into))
	}
	return err
}
