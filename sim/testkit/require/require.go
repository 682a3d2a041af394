// Package require has the checks that almost every test repeats. A failed check ends the test.
package require

import (
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
	var missing []string
	for _, part := range parts {
		if !strings.Contains(text, part) {
			missing = append(missing, part)
		}
	}
	if len(missing) > 0 {
		t.Fatalf("%q are not in\n%s", missing, text)
	}
}
