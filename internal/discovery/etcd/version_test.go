package etcd_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
)

// The tests of this package describe the etcd that they run with. PD_TEST_ETCD
// names another etcd binary, PD_TEST_ETCD_VERSION the prefix of its version. A
// run for an old etcd thus cannot pass with a new one by mistake.
func TestEtcdVersion(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	s, err := etcd.Client(t).Status(t.Context(), etcd.Endpoint())
	require.NoError(t, err)
	t.Logf("these tests run against etcd %s", s.Version)
	want := os.Getenv("PD_TEST_ETCD_VERSION")
	assert.True(t, s.Version != "" && strings.HasPrefix(s.Version, want), "etcd %q, want %s...", s.Version, want)
}
