// Package leak fails a package's tests if they leave goroutines running.
package leak

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// looks is the number of goleak.Find calls before Find reports a leak. Each call
// retries for up to half a second. net/http keeps a connection that it answered
// early for as long (closeWriteAndWait), even after Close.
const looks = 20

// Main runs the tests of m and exits the process. It fails if goroutines remain
// that do not end by themselves.
func Main(m *testing.M) {
	code := m.Run()
	if code == 0 {
		if err := Find(); err != nil {
			fmt.Fprintf(os.Stderr, "the tests passed, but left goroutines behind: %v\n", err)
			code = 1
		}
	}
	os.Exit(code)
}

// Find returns an error that names the goroutines, other than the caller's, that
// do not end within about 10 s. It returns nil if there are none.
func Find() error { return find(looks) }

func find(looks int) (err error) {
	for range looks {
		if err = goleak.Find(); err == nil {
			return nil
		}
	}
	return err
}
