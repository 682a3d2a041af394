package testkit_test

import (
	"crypto/tls"
	"testing"

	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/require"
)

func TestEtcd_RestartKeepsTLS(t *testing.T) {
	t.Parallel()
	ca := testkit.NewAuthority(t, "ca")
	cert, key := ca.Issue("etcd", testkit.Certificate{Hosts: []string{"127.0.0.1"}})
	e := testkit.StartEtcdTLS(t, cert, key, "")
	e.Restart()
	c, err := (&tls.Dialer{Config: &tls.Config{RootCAs: ca.Pool()}}).DialContext(t.Context(), "tcp", e.Endpoint())
	require.NoError(t, err)
	_ = c.Close()
}
