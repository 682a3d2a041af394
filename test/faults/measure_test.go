package faults_test

import (
	"encoding/json"
	"os"
	"testing"
	"time"
)

// entry is one line of the report; test/faults/report reads it.
type entry struct {
	Row    int     `json:"row"`
	Test   string  `json:"test"`
	Passed *bool   `json:"passed,omitempty"`
	What   string  `json:"what,omitempty"`
	Value  float64 `json:"value,omitempty"`
	Bar    float64 `json:"bar,omitempty"`
	Unit   string  `json:"unit,omitempty"`
	Long   bool    `json:"long,omitempty"`
}

// row names the row of the matrix that the test covers, and marks the test as parallel.
func row(t *testing.T, n int) {
	t.Helper()
	t.Parallel()
	rowAlone(t, n)
}

// rowAlone is row for tests whose limit needs the whole machine: no other test of this package runs
// at the same time.
func rowAlone(t *testing.T, n int) {
	t.Helper()
	t.Cleanup(func() {
		passed := !t.Failed()
		if !t.Skipped() {
			write(t, entry{Row: n, Test: t.Name(), Passed: &passed, Long: long()})
		}
	})
}

// measured reports a time and its limit; 0 means no limit. A missed limit is shown in the report and
// does not fail the test, because durations depend on the machine as much as on the program.
func measured(t testing.TB, n int, what string, value, bar time.Duration) {
	t.Helper()
	t.Logf("row %d: %s: %s (bar %s)", n, what, value.Round(100*time.Microsecond), bar)
	write(t, entry{Row: n, Test: t.Name(), What: what, Value: value.Seconds(), Bar: bar.Seconds(), Unit: "s"})
}

// counted reports a number and its maximum.
func counted(t testing.TB, n int, what string, value, bar int64) {
	t.Helper()
	t.Logf("row %d: %s: %d (bar %d)", n, what, value, bar)
	write(t, entry{Row: n, Test: t.Name(), What: what, Value: float64(value), Bar: float64(bar), Unit: "count"})
}

func write(t testing.TB, e entry) {
	t.Helper()
	path := os.Getenv("PD_TEST_FAULT_REPORT")
	if path == "" {
		return
	}
	raw, err := json.Marshal(e)
	if err != nil {
		t.Errorf("report: %v", err)
		return
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Errorf("report: %v", err)
		return
	}
	defer f.Close()
	if _, err := f.Write(append(raw, '\n')); err != nil { // one write: lines of parallel tests do not mix
		t.Errorf("report: %v", err)
	}
}
