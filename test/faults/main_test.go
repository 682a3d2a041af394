// Package faults_test injects the faults of the matrix that docs/reliability.md
// shows, one test each. A test asserts what must not happen and what must come
// about, never how long it took; where the matrix has a time as its bar the
// test measures it and hands it to the report.
//
// PD_TEST_FAULT_LONG=1 makes outages as long as the matrix has them; PD_TEST_FAULT_REPORT
// names a file to which every test appends what it measured.
package faults_test

import (
	"flag"
	"os"
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/test/harness"
)

// bin holds the programs; TestMain builds them once for all tests.
var bin string

// atOnce is how many tests run side by side unless -parallel says otherwise:
// they wait for outages to pass far more than they compute.
const atOnce = "4"

func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		if err := flag.Set("test.parallel", atOnce); err != nil {
			panic(err) // the testing package has no such flag any more
		}
	}
	os.Exit(harness.Main(m, &bin))
}

// soon bounds what a test waits for; nothing is asserted on it.
const soon = 60 * time.Second

// long reports whether outages shall be as long as in the matrix.
func long() bool { return os.Getenv("PD_TEST_FAULT_LONG") != "" }

// outage picks the length of an outage.
func outage(short, full time.Duration) time.Duration {
	if long() {
		return full
	}
	return short
}

// wait lets an outage last. It is the fault, not a way to wait for something.
func wait(t testing.TB, d time.Duration) {
	t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
		t.Fatal("the test ended during an outage")
	}
}
