// Package longform reports whether tests run in their long form. make test runs the short
// form; make test-long sets PD_TEST_LONG=1 for the long form.
package longform

import (
	"os"
	"testing"
)

// Run reports whether the long form is enabled.
func Run() bool { v := os.Getenv("PD_TEST_LONG"); return v != "" && v != "0" }

// Test skips a test of the long form, with a message, unless the long form is enabled.
func Test(t testing.TB) {
	t.Helper()
	if !Run() {
		t.Skip("a long test: make test-long runs it (PD_TEST_LONG=1)")
	}
}

// Count returns the number of rounds, seeds or requests of a test: few in the short form,
// all in the long form.
func Count(few, all int) int {
	if Run() {
		return all
	}
	return few
}
