// Package require has the checks of package assert that end the test if they fail.
package require

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pdmesh/pdmesh/sim/testkit/assert"
)

// Equal ends the test unless got == want.
func Equal[T comparable](t testing.TB, got, want T, about ...any) {
	t.Helper()
	must(t, assert.Equal(t, got, want, about...))
}

// NotEqual ends the test unless got != not.
func NotEqual[T comparable](t testing.TB, got, not T, about ...any) {
	t.Helper()
	must(t, assert.NotEqual(t, got, not, about...))
}

// True ends the test unless got is true.
func True(t testing.TB, got bool, about ...any) {
	t.Helper()
	must(t, assert.True(t, got, about...))
}

// False ends the test unless got is false.
func False(t testing.TB, got bool, about ...any) {
	t.Helper()
	must(t, assert.False(t, got, about...))
}

// EqualSlices ends the test unless two slices have the same elements.
func EqualSlices[S ~[]E, E comparable](t testing.TB, got, want S, about ...any) {
	t.Helper()
	must(t, assert.EqualSlices(t, got, want, about...))
}

// Len ends the test unless a slice, map or text has a length.
func Len(t testing.TB, got any, want int, about ...any) {
	t.Helper()
	must(t, assert.Len(t, got, want, about...))
}

// NoDiff ends the test if cmp.Diff finds a difference.
func NoDiff(t testing.TB, want, got any, opts ...cmp.Option) {
	t.Helper()
	must(t, assert.NoDiff(t, want, got, opts...))
}

// NoError ends the test if err is not nil.
func NoError(t testing.TB, err error, about ...any) {
	t.Helper()
	must(t, assert.NoError(t, err, about...))
}

// Error ends the test if err is nil.
func Error(t testing.TB, err error, about ...any) {
	t.Helper()
	must(t, assert.Error(t, err, about...))
}

// ErrorIs ends the test unless errors.Is(err, target).
func ErrorIs(t testing.TB, err, target error, about ...any) {
	t.Helper()
	must(t, assert.ErrorIs(t, err, target, about...))
}

// ErrorContains ends the test unless err is an error whose text contains all of the parts.
func ErrorContains(t testing.TB, err error, parts ...string) {
	t.Helper()
	must(t, assert.ErrorContains(t, err, parts...))
}

// Contains ends the test if a text does not contain all of the parts.
func Contains(t testing.TB, text string, parts ...string) {
	t.Helper()
	must(t, assert.Contains(t, text, parts...))
}

// NotContains ends the test if a text contains a part.
func NotContains(t testing.TB, text, part string) {
	t.Helper()
	must(t, assert.NotContains(t, text, part))
}

func must(t testing.TB, ok bool) {
	if !ok {
		t.FailNow()
	}
}
