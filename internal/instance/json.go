package instance

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
)

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
