package etcd_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/longform"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

// Sizes in HTTP/2 (RFC 9113): a PING frame (6.7), and the bytes that a gRPC client sends on a new connection:
// the preface (3.4), SETTINGS with one parameter (6.5), WINDOW_UPDATE (6.9) and the SETTINGS acknowledgement.
const (
	pingSize  = 17
	setupSize = 24 + 15 + 13 + 9
)

// The connection of a watch is pinged to detect a hung member. A connection
// without a call is not pinged: etcd closes it after three such pings
// ("too_many_pings"), and gRPC then doubles the ping interval of the client.
func TestIdleConnection_NotPinged(t *testing.T) {
	t.Parallel()
	longform.Test(t)
	server := etcdtest.Start(t)
	address := strings.TrimPrefix(server.Endpoint(), "http://")
	links := [2]*testkit.Link{testkit.StartLink(t, address), testkit.StartLink(t, address)}
	cli := members.Dial(t, links[0].Address(), links[1].Address())
	events := cli.Watch(t.Context(), "/watched", clientv3.WithCreatedNotify())
	resp := <-events
	require.NoError(t, resp.Err(), resp.Err())
	sent := func(i int) int64 { return links[i].Passed(testkit.ToServer) }
	testkit.EventuallyTrue(t, members.Soon, func() bool { return min(sent(0), sent(1)) >= setupSize }, "both connections are ready")
	used, idle := 0, 1 // the connection of the watch has sent more
	if sent(1) > sent(0) {
		used, idle = 1, 0
	}
	before := sent(idle)
	// After the first bytes, each connection carries only one ping per 10 s,
	// so two pings of one connection take longer than one of the other.
	for range 3 {
		now := sent(used)
		testkit.EventuallyTrue(t, time.Minute, func() bool { return sent(used) != now }, "no ping")
	}
	n := sent(idle) - before
	assert.True(t, n < pingSize, "the idle connection has sent %d bytes", n)
}
