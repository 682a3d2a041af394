package selfcheck

import (
	"testing"

	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

func TestLocalAddress(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]string{"0.0.0.0": "127.0.0.1:1", "::": "[::1]:1", "10.0.0.1": "10.0.0.1:1", "": "127.0.0.1:1", "h": "h:1"} {
		if got := localAddress(host, 1); got != want {
			t.Errorf("%q: %s", host, got)
		}
	}
}
