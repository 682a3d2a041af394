package program

import (
	"context"
	"net/http"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/agent/setup"
	"github.com/pdmesh/pdmesh/internal/engine/lmcache"
	"github.com/pdmesh/pdmesh/internal/engine/zmq"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fakevllm/connector"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit/zmqpeer"
)

// The agent receives a notification and returns it to the proxy that queries it.
func TestLMCacheBridge(t *testing.T) {
	t.Parallel()
	ports, err := fleet.FreePorts(1)
	require.NoError(t, err)
	c := setup.Config{Notices: setup.NoticeConfig{Endpoint: "tcp://127.0.0.1:" + strconv.Itoa(ports[0]), Listen: "127.0.0.1:0"}}
	stop, err := relayNotices(t.Context(), &c, testLog())
	require.NoError(t, err)
	defer stop()
	s, err := zmqpeer.NewSender(zmq.Push, c.Notices.Endpoint)
	require.NoError(t, err)
	defer s.Close()
	frame := connector.Notification("7")
	require.NoError(t, s.Send(t.Context(), frame))
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	in := &instance.Instance{Key: instance.Key{Role: instance.Prefill, Address: "127.0.0.1:8100"}, Record: c.Facts}
	a := lmcache.Waiter{HTTP: &http.Client{Transport: transport}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	assert.NoError(t, a.Await(ctx, in, "7", 1))
}
