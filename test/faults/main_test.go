// Package faults_test injects the faults of the matrix in docs/reliability.md, one test for each.
// A test asserts what must happen and what must not, but no durations; where the matrix has a time
// limit, the test measures the time and adds it to the report.
//
// PD_TEST_FAULT_LONG=1 uses the outage lengths of the matrix; PD_TEST_FAULT_REPORT names a file to
// which every test appends its measurements.
package faults_test

import (
	"flag"
	"os"
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/test/harness"
)

// bin is the directory of the programs; TestMain builds them once for all tests.
var bin string

// parallelTests is the number of tests that run in parallel unless -parallel sets another: they mostly wait
// for outages to pass and use little CPU.
const parallelTests = "4"

func TestMain(m *testing.M) {
	testkit.MaybeRunEtcd() // before the flags are parsed
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		if err := flag.Set("test.parallel", parallelTests); err != nil {
			panic(err) // the testing package no longer has this flag
		}
	}
	os.Exit(harness.Main(m, &bin))
}

// soon bounds the time that a test waits for a condition; no test asserts on it.
const soon = 60 * time.Second

// long reports whether outages have the lengths of the matrix.
func long() bool { return os.Getenv("PD_TEST_FAULT_LONG") != "" }

// outage returns one of two lengths of an outage.
func outage(short, full time.Duration) time.Duration {
	if long() {
		return full
	}
	return short
}

// wait sleeps for the length of an outage. It is not a way to wait for a condition.
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
