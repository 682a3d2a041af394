// Package require has the checks that almost every test repeats. A failed check ends the test.
package require

import (
	"slices"
	"strings"
	"testing"
)

// NoError fails the test if err is not nil.
func NoError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Contains fails the test if a text does not contain all of the parts.
func Contains(t testing.TB, text string, parts ...string) {
	t.Helper()
	missing := slices.DeleteFunc(slices.Clone(parts), func(part string) bool { return strings.Contains(text, part) })
	if len(missing) > 0 {
		t.Fatalf("%q are not in\n%s", missing, text)
	}
}
