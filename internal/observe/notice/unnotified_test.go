package notice_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/observe/notice"
)

// Keys of a former etcd that proxies keep are reported, because etcd, and so pdctl, lacks them.
func TestKeptEntries_Reported(t *testing.T) {
	t.Parallel()
	f := newFleet(in(instance.Prefill, "p:1"), in(instance.Decode, "d:1"))
	got := notice.View{
		Snapshot: f.snapshot, Counts: f.counts, Opinion: f.opinion, PairKey: func(*instance.Instance) connector.PairKey { return connector.PairKey{Connector: "nixl"} }, Kept: 3,
	}.Texts()
	require.Len(t, got, 1)
	assert.Contains(t, got[0], "(3): pdctl restore --all")
}

// Prefill instances whose notifications do not arrive are named with the expected address.
func TestUnnotified(t *testing.T) {
	t.Parallel()
	f := newFleet()
	got := notice.View{
		Snapshot: f.snapshot, Counts: f.counts,
		Unnotified: map[instance.Key]string{
			{Role: instance.Prefill, Address: "p:2"}: "port 8500 of the agent on p (--lmcache-notify)", {Role: instance.Prefill, Address: "p:1"}: "a",
		},
	}.Texts()
	want := "no decode instance is registered: nothing is served\n" +
		"prefill p:1 is bypassed: its LMCache notifications do not arrive; they are expected at a\n" +
		"prefill p:2 is bypassed: its LMCache notifications do not arrive; they are expected at port 8500 of the agent on p (--lmcache-notify)"
	assert.Equal(t, want, strings.Join(got, "\n"), got)
}
