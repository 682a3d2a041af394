package pydantic

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// The functions below convert JSON values the way pydantic's lax mode does for
// request models: "5", 5.0 and true are integers, "yes" and 1 are booleans, but
// a number is no string. Their errors are pydantic's, as vLLM shows them.

// IsNull tells a JSON null (or an absent value).
func IsNull(raw []byte) bool { return len(raw) == 0 || string(raw) == "null" }

// Truthy is Python's opinion of a raw JSON value; several of vLLM's checks run
// before types are converted and see just that.
func Truthy(raw []byte) bool {
	switch s := string(raw); s {
	case "", "null", "false", "0", "0.0", "-0", `""`, "[]", "{}":
		return false
	default:
		if (raw[0] == '[' || raw[0] == '{') && SkipSpace(raw, 1) == len(raw)-1 {
			return false
		}
		return true
	}
}

func Int(loc string, raw []byte) (int, error) {
	if n, err := strconv.ParseInt(string(raw), 10, 64); err == nil {
		return int(n), nil
	}
	switch raw[0] {
	case 't':
		return 1, nil
	case 'f':
		return 0, nil
	case '"':
		s, err := Unquote(raw)
		if err != nil {
			return 0, err
		}
		t := strings.ReplaceAll(strings.TrimSpace(s), "_", "")
		if whole, frac, ok := strings.Cut(t, "."); ok && strings.Trim(frac, "0") == "" {
			t = whole
		}
		n, err := strconv.ParseInt(t, 10, 64)
		if err != nil {
			return 0, Invalid("int_parsing", loc, raw, "Input should be a valid integer, unable to parse string as an integer")
		}
		return int(n), nil
	case 'n', '[', '{':
		return 0, Invalid("int_type", loc, raw, "Input should be a valid integer")
	}
	f, err := strconv.ParseFloat(string(raw), 64)
	switch {
	case math.IsNaN(f) || math.IsInf(f, 0):
		return 0, Invalid("finite_number", loc, raw, "Input should be a finite number")
	case err != nil:
		return 0, Invalid("int_type", loc, raw, "Input should be a valid integer")
	}
	if f != math.Trunc(f) {
		return 0, Invalid("int_from_float", loc, raw, "Input should be a valid integer, got a number with a fractional part")
	}
	if math.Abs(f) >= 1<<63 {
		return 0, Invalid("int_parsing_size", loc, raw, "Unable to parse input string as an integer, exceeded maximum size")
	}
	return int(f), nil
}

func Float(loc string, raw []byte) (float64, error) {
	switch raw[0] {
	case 't':
		return 1, nil
	case 'f':
		return 0, nil
	case '"':
		s, err := Unquote(raw)
		if err != nil {
			return 0, err
		}
		f, err := strconv.ParseFloat(strings.ReplaceAll(strings.TrimSpace(s), "_", ""), 64)
		if err != nil {
			return 0, Invalid("float_parsing", loc, raw, "Input should be a valid number, unable to parse string as a number")
		}
		return f, nil
	case 'n', '[', '{':
		return 0, Invalid("float_type", loc, raw, "Input should be a valid number")
	}
	f, err := strconv.ParseFloat(string(raw), 64)
	if err != nil {
		return 0, Invalid("float_type", loc, raw, "Input should be a valid number")
	}
	return f, nil
}

func Bool(loc string, raw []byte) (bool, error) {
	s := string(raw)
	if raw[0] == '"' {
		t, err := Unquote(raw)
		if err != nil {
			return false, err
		}
		s = strings.ToLower(t)
		switch s {
		case "true", "1", "on", "t", "y", "yes":
			return true, nil
		case "false", "0", "off", "f", "n", "no":
			return false, nil
		}
		return false, Invalid("bool_parsing", loc, raw, "Input should be a valid boolean, unable to interpret input")
	}
	switch s {
	case "true", "1", "1.0":
		return true, nil
	case "false", "0", "0.0":
		return false, nil
	}
	if raw[0] == '[' || raw[0] == '{' || raw[0] == 'n' || strings.ContainsAny(s, ".eEIN") {
		return false, Invalid("bool_type", loc, raw, "Input should be a valid boolean")
	}
	return false, Invalid("bool_parsing", loc, raw, "Input should be a valid boolean, unable to interpret input")
}

func String(loc string, raw []byte) (string, error) {
	if raw[0] != '"' {
		return "", Invalid("string_type", loc, raw, "Input should be a valid string")
	}
	return Unquote(raw)
}

// RawList splits a JSON list that was validated.
func RawList(loc string, raw []byte) ([][]byte, error) {
	if raw[0] != '[' {
		return nil, Invalid("list_type", loc, raw, "Input should be a valid list")
	}
	var list [][]byte
	err := ForEachElement(raw, func(_ int, item []byte) error {
		list = append(list, item)
		return nil
	})
	return list, err
}

func Ints(loc string, raw []byte) ([]int, error) {
	if ids, ok := ScanInts(raw, nil); ok {
		return ids, nil
	}
	list, err := RawList(loc, raw)
	if err != nil {
		return nil, err
	}
	out := make([]int, len(list))
	var problems []Problem
	for i, item := range list {
		if out[i], err = Int(fmt.Sprintf("%s.%d", loc, i), item); err != nil {
			problems = append(problems, AsError(err).Problems...)
		}
	}
	if len(problems) > 0 {
		return nil, Complaints(problems...)
	}
	return out, nil
}

func Strings(loc string, raw []byte) ([]string, error) {
	list, err := RawList(loc, raw)
	if err != nil {
		return nil, err
	}
	out := make([]string, len(list))
	for i, item := range list {
		if out[i], err = String(fmt.Sprintf("%s.%d", loc, i), item); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// CheckObject accepts a JSON object.
func CheckObject(loc string, raw []byte) error {
	if raw[0] != '{' {
		return Invalid("dict_type", loc, raw, "Input should be a valid dictionary")
	}
	return nil
}
