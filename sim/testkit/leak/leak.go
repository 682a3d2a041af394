// Package leak fails a package's tests when goroutines are left behind them.
package leak

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// looks is how many times Find looks before it believes in a leak. Each look of
// goleak's lasts up to half a second, which is as long as net/http keeps a
// connection that it has answered early (closeWriteAndWait), also behind Close.
const looks = 20

// Main runs the tests of m and ends the process. Goroutines that do not end by
// themselves are a failure.
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

// Find returns an error that names the goroutines beside the caller's which do
// not end within some seconds, nil if there are none.
func Find() error { return find(looks) }

func find(looks int) (err error) {
	for range looks {
		if err = goleak.Find(); err == nil {
			return nil
		}
	}
	return err
}
