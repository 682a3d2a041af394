package etcd_test

import (
	"os"
	"strings"
	"testing"

	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/require"
)

// The tests of this package say something about the etcd they ran against. With
// PD_TEST_ETCD that is another program, and PD_TEST_ETCD_VERSION is how its
// version must begin, so that a run which is about an old etcd cannot pass with
// a new one by mistake.
func TestWhichEtcd(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	s, err := etcd.Client(t).Status(t.Context(), etcd.Endpoint())
	require.NoError(t, err)
	t.Logf("these tests run against etcd %s", s.Version)
	want := os.Getenv("PD_TEST_ETCD_VERSION")
	if s.Version == "" || !strings.HasPrefix(s.Version, want) {
		t.Errorf("etcd %q, want %s...", s.Version, want)
	}
}
