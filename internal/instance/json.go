package instance

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
)

// DecodeStrict decodes a JSON value into a struct without interfaces. Unlike json.Unmarshal, it returns an error
// for an unknown field, also if only the case of its name differs, and for one that occurs twice.
func DecodeStrict(raw []byte, into any) error {
	if err := json.Unmarshal(raw, into); err != nil {
		return err
	}
	return checkFields(json.NewDecoder(bytes.NewReader(raw)), reflect.TypeOf(into))
}

// checkFields checks the fields of the next value, which json.Unmarshal has decoded into a t.
func checkFields(d *json.Decoder, t reflect.Type) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	begin, err := d.Token()
	if _, nested := begin.(json.Delim); err != nil || !nested {
		return err
	}
	for seen := map[json.Token]bool{}; d.More(); {
		var of reflect.Type
		if begin == json.Delim('{') {
			name, _ := d.Token() // the JSON is valid
			if seen[name] {
				return fmt.Errorf("field %q occurs twice", name)
			}
			seen[name] = true
			if of = fieldType(t, name); of == nil {
				return fmt.Errorf("unknown field %q", name)
			}
		} else {
			of = t.Elem()
		}
		if err := checkFields(d, of); err != nil {
			return err
		}
	}
	_, err = d.Token() // the end
	return err
}

// fieldType returns the type of a field of a struct, nil if it has none of this name, or of the values of a map.
func fieldType(t reflect.Type, name json.Token) reflect.Type {
	if t.Kind() == reflect.Map {
		return t.Elem()
	}
	for _, f := range reflect.VisibleFields(t) {
		if tag, _, _ := strings.Cut(f.Tag.Get("json"), ","); tag != "" && tag == name {
			return f.Type
		}
	}
	return nil
}

// JSONError returns the text of an error of encoding/json. For a value of the wrong type, the text names
// the field and the valid values, without types of Go.
func JSONError(err error) string {
	text := strings.TrimPrefix(err.Error(), "json: ")
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		field := wrong.Field
		if outer, inner, ok := strings.Cut(field, "."); ok && outer != strings.ToLower(outer) {
			field = inner // outer is the Go name of an embedded struct
		}
		text = fmt.Sprintf("%s: %s in place of %s", cmp.Or(field, "the value"), wrong.Value, expected(wrong.Type)) // for a map, of an element
	}
	return Printable(text, 200)
}

// expected describes the values that a field of a type can have.
func expected(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "a map"
	case reflect.Float32, reflect.Float64:
		return "a number"
	}
	return "a whole number"
}
