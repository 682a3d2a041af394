package etcd_test

import (
	"cmp"
	"fmt"
	"os"
	"testing"

	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) {
	// Go reads these variables once, and uses no HTTP proxy for loopback.
	if err := cmp.Or(os.Setenv("HTTPS_PROXY", "http://127.0.0.1:1"), os.Unsetenv("NO_PROXY"), os.Unsetenv("no_proxy")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	leak.Main(m)
}
