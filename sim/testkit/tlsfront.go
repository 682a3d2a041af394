package testkit

import (
	"crypto/tls"
	"testing"

	"github.com/pdmesh/pdmesh/sim/testkit/require"
)

// TLSFront accepts TLS connections with a configuration, relays them to a server without
// TLS, and returns its address.
func TLSFront(t testing.TB, config *tls.Config, target string) string {
	t.Helper()
	lis, err := tls.Listen("tcp", "127.0.0.1:0", config)
	require.NoError(t, err)
	return startLink(t, lis, target).Address()
}
