// Package pydantic reads JSON bodies and the values in them as vLLM's request models do, and
// renders vLLM's error responses.
package pydantic

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// The functions below convert JSON values as pydantic's lax mode does for request models:
// "5", 5.0 and true are integers, "yes" and 1 are booleans, but a number is no string. loc is
// the dotted path of the value in the body.

// IsNull reports whether a JSON value is null or absent.
func IsNull(raw []byte) bool { return len(raw) == 0 || string(raw) == "null" }

// Truthy reports whether Python takes a JSON value for true. Several of vLLM's checks run
// before types are converted.
func Truthy(raw []byte) bool {
	switch string(raw) {
	case "", "null", "false", "0", "0.0", "-0", `""`, "[]", "{}":
		return false
	}
	return raw[0] != '[' && raw[0] != '{' || SkipSpace(raw, 1) != len(raw)-1
}

// number returns the text of a number or of a string that may be one; true is 1.
func number(raw []byte) string {
	switch raw[0] {
	case 't':
		return "1"
	case 'f':
		return "0"
	case '"':
		s, _ := Unquote(raw) // an invalid string is no number
		return strings.ReplaceAll(strings.TrimSpace(s), "_", "")
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

// Float converts a number. NaN and the infinities are numbers.
func Float(loc string, raw []byte) (float64, error) {
	f, err := strconv.ParseFloat(number(raw), 64)
	if err != nil {
		return 0, Invalid(loc, "Input should be a valid number")
	}
	return f, nil
}

// Bool converts a boolean.
func Bool(loc string, raw []byte) (bool, error) {
	text := string(raw)
	if raw[0] == '"' {
		text, _ = Unquote(raw) // an invalid string is no boolean
		text = strings.ToLower(text)
	}
	switch text {
	case "true", "1":
		return true, nil
	case "false", "0":
		return false, nil
	}
	switch {
	case raw[0] == '"' && slices.Contains([]string{"on", "t", "y", "yes"}, text), text == "1.0":
		return true, nil
	case raw[0] == '"' && slices.Contains([]string{"off", "f", "n", "no"}, text), text == "0.0":
		return false, nil
	}
	return false, Invalid(loc, "Input should be a valid boolean")
}

// String decodes a string.
func String(loc string, raw []byte) (string, error) {
	if raw[0] != '"' {
		return "", Invalid(loc, "Input should be a valid string")
	}
	return Unquote(raw)
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
func RawList(loc string, raw []byte) (list [][]byte, err error) {
	if raw[0] != '[' {
		return nil, Invalid(loc, "Input should be a valid list")
	}
	return list, ForEachElement(raw, func(_ int, item []byte) error {
		list = append(list, item)
		return nil
	})
}

// Ints converts a list of integers.
func Ints(loc string, raw []byte) ([]int, error) {
	if ids, ok := ScanInts(raw, nil); ok {
		return ids, nil
	}
	return each(loc, raw, Int)
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

// Object reports an error unless a value is an object.
func Object(loc string, raw []byte) error {
	if raw[0] != '{' {
		return Invalid(loc, "Input should be a valid dictionary")
	}
	return nil
}

// Into converts a value to the type that into points to; a *[]byte takes the raw text of an
// object. null sets the zero value.
func Into(into any, loc string, raw []byte) (err error) {
	null := IsNull(raw)
	switch p := into.(type) {
	case *int:
		*p, err = unless(null, loc, raw, Int)
	case **int:
		if *p = nil; !null {
			n, err := Int(loc, raw)
			*p = &n
			return err
		}
	case *float64:
		*p, err = unless(null, loc, raw, Float)
	case *bool:
		*p, err = unless(null, loc, raw, Bool)
	case *string:
		*p, err = unless(null, loc, raw, String)
	case *[]int:
		*p, err = unless(null, loc, raw, Ints)
	case *[]string:
		*p, err = unless(null, loc, raw, Strings)
	case *[]byte:
		if *p = nil; !null {
			*p = raw
			return Object(loc, raw)
		}
	default:
		panic(fmt.Sprintf("no conversion to %T", into))
	}
	return err
}

func unless[T any](null bool, loc string, raw []byte, convert func(string, []byte) (T, error)) (v T, err error) {
	if null {
		return v, nil
	}
	return convert(loc, raw)
}
