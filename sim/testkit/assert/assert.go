// Package assert has the comparisons that almost every test repeats. After a failed one the test continues; package
// require has those that end it. The values in about are printed with a failure: any value, or a format and what it
// needs.
package assert

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Equal reports whether got == want.
func Equal[T comparable](t testing.TB, got, want T, about ...any) bool {
	t.Helper()
	return got == want || fail(t, about, "got %s, want %s", Value{got}, Value{want})
}

// NotEqual reports whether got != not.
func NotEqual[T comparable](t testing.TB, got, not T, about ...any) bool {
	t.Helper()
	return got != not || fail(t, about, "got %s", Value{got})
}

// True reports whether got is true.
func True(t testing.TB, got bool, about ...any) bool {
	t.Helper()
	return got || fail(t, about, "")
}

// False reports whether got is false.
func False(t testing.TB, got bool, about ...any) bool {
	t.Helper()
	return !got || fail(t, about, "")
}

// EqualSlices reports whether two slices have the same elements; nil and an empty one are the same.
func EqualSlices[S ~[]E, E comparable](t testing.TB, got, want S, about ...any) bool {
	t.Helper()
	return slices.Equal(got, want) || fail(t, about, "got %s, want %s", Value{got}, Value{want})
}

// Len reports whether a slice, map or text has a length.
func Len(t testing.TB, got any, want int, about ...any) bool {
	t.Helper()
	n := reflect.ValueOf(got).Len()
	return n == want || fail(t, about, "length %d, want %d: %s", n, want, Value{got})
}

// NoDiff reports whether cmp.Diff finds no difference.
func NoDiff(t testing.TB, want, got any, opts ...cmp.Option) bool {
	t.Helper()
	diff := cmp.Diff(want, got, opts...)
	return diff == "" || fail(t, nil, "(-want +got)\n%s", diff)
}

// NoError reports whether err is nil.
func NoError(t testing.TB, err error, about ...any) bool {
	t.Helper()
	return err == nil || fail(t, about, "%v", err)
}

// Error reports whether err is not nil.
func Error(t testing.TB, err error, about ...any) bool {
	t.Helper()
	return err != nil || fail(t, about, "no error")
}

// ErrorIs reports whether errors.Is(err, target).
func ErrorIs(t testing.TB, err, target error, about ...any) bool {
	t.Helper()
	return errors.Is(err, target) || fail(t, about, "got error %v, want %v", err, target)
}

// ErrorContains reports whether err is an error whose text contains all of the parts.
func ErrorContains(t testing.TB, err error, parts ...string) bool {
	t.Helper()
	return (err != nil || fail(t, nil, "no error, want one with %q", parts)) && Contains(t, err.Error(), parts...)
}

// Contains reports whether a text contains all of the parts.
func Contains(t testing.TB, text string, parts ...string) bool {
	t.Helper()
	missing := slices.DeleteFunc(slices.Clone(parts), func(part string) bool { return strings.Contains(text, part) })
	return len(missing) == 0 || fail(t, nil, "%q are not in\n%s", missing, text)
}

// NotContains reports whether a text does not contain a part.
func NotContains(t testing.TB, text, part string) bool {
	t.Helper()
	return !strings.Contains(text, part) || fail(t, nil, "%q is in\n%s", part, text)
}

// Value prints a value as a failure does.
type Value struct{ V any }

func (v Value) String() string {
	switch v.V.(type) {
	case string, []string:
		return fmt.Sprintf("%q", v.V)
	}
	return fmt.Sprintf("%+v", v.V)
}

func fail(t testing.TB, about []any, format string, args ...any) bool {
	t.Helper()
	t.Error(Message(about, format, args...))
	return false
}

// Message returns what a failure is about and its text, or one of them if the other is empty.
func Message(about []any, format string, args ...any) string {
	var texts []string
	if len(about) == 1 {
		texts = append(texts, fmt.Sprint(about[0]))
	} else if len(about) > 1 {
		texts = append(texts, fmt.Sprintf(fmt.Sprint(about[0]), about[1:]...))
	}
	if format != "" {
		texts = append(texts, fmt.Sprintf(format, args...))
	}
	return strings.Join(texts, ": ")
}
