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
	return check(t, got == want, about, "got %s, want %s", show(got), show(want))
}

// True reports whether a condition holds. The message describes the failure; its arguments are evaluated in any case.
func True(t testing.TB, ok bool, format string, args ...any) bool {
	t.Helper()
	if !ok {
		t.Errorf(format, args...)
	}
	return ok
}

// EqualSlices reports whether two slices have the same elements; nil and an empty one are the same.
func EqualSlices[S ~[]E, E comparable](t testing.TB, got, want S, about ...any) bool {
	t.Helper()
	return check(t, slices.Equal(got, want), about, "got %s, want %s", show(got), show(want))
}

// Len reports whether a slice, map or text has a length.
func Len(t testing.TB, got any, want int, about ...any) bool {
	t.Helper()
	n := reflect.ValueOf(got).Len()
	return check(t, n == want, about, "length %d, want %d: %s", n, want, show(got))
}

// NoDiff reports whether cmp.Diff finds no difference.
func NoDiff(t testing.TB, want, got any, opts ...cmp.Option) bool {
	t.Helper()
	diff := cmp.Diff(want, got, opts...)
	return check(t, diff == "", nil, "(-want +got)\n%s", diff)
}

// NoError reports whether err is nil.
func NoError(t testing.TB, err error, about ...any) bool {
	t.Helper()
	return check(t, err == nil, about, "%v", err)
}

// ErrorIs reports whether errors.Is(err, target).
func ErrorIs(t testing.TB, err, target error, about ...any) bool {
	t.Helper()
	return check(t, errors.Is(err, target), about, "got error %q, want %q", fmt.Sprint(err), fmt.Sprint(target))
}

// ErrorContains reports whether err is an error whose text contains all of the parts.
func ErrorContains(t testing.TB, err error, parts ...string) bool {
	t.Helper()
	return check(t, err != nil, nil, "no error, want one with %q", parts) && Contains(t, err.Error(), parts...)
}

// Contains reports whether a text contains all of the parts.
func Contains(t testing.TB, text string, parts ...string) bool {
	t.Helper()
	missing := slices.DeleteFunc(slices.Clone(parts), func(part string) bool { return strings.Contains(text, part) })
	return check(t, len(missing) == 0, nil, "%q are not in\n%s", missing, text)
}

// show returns a value as a failure prints it.
func show(v any) string {
	switch v.(type) {
	case string, []string:
		return fmt.Sprintf("%q", v)
	}
	return fmt.Sprintf("%+v", v)
}

func check(t testing.TB, ok bool, about []any, format string, args ...any) bool {
	t.Helper()
	if ok {
		return true
	}
	text := fmt.Sprintf(format, args...)
	if len(about) == 1 {
		text = fmt.Sprintf("%v: %s", about[0], text)
	} else if len(about) > 1 {
		text = fmt.Sprintf(fmt.Sprint(about[0]), about[1:]...) + ": " + text
	}
	t.Error(text)
	return false
}
