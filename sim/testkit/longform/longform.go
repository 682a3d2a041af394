// Package longform reports how much tests may do: make test is for a person who waits,
// make test-long does all of it. PD_TEST_LONG=1 asks for the long form.
package longform

import (
	"os"
	"testing"
)

// Run reports whether the long form is asked for.
func Run() bool { v := os.Getenv("PD_TEST_LONG"); return v != "" && v != "0" }

// Test skips a test that is not part of the short form, with a message.
func Test(t testing.TB) {
	t.Helper()
	if !Run() {
		t.Skip("a long test: make test-long runs it (PD_TEST_LONG=1)")
	}
}

// Count returns a number of rounds, seeds or requests: few for the short form, all for
// the long one.
func Count(few, all int) int {
	if Run() {
		return all
	}
	return few
}
