package program

import (
	"context"
	"net/http"
	"strconv"
	"testing"

	"github.com/pdmesh/pdmesh/internal/agent/setup"
	"github.com/pdmesh/pdmesh/internal/engine/lmcache"
	"github.com/pdmesh/pdmesh/internal/engine/zmq"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit/zmqpeer"
)

// The agent takes a notification and returns it to the proxy that asks.
func TestLMCacheBridge(t *testing.T) {
	t.Parallel()
	ports, err := fleet.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	c := setup.Config{Notices: setup.NoticeConfig{Endpoint: "tcp://127.0.0.1:" + strconv.Itoa(ports[0]), Listen: "127.0.0.1:0"}}
	stop, err := relayNotices(t.Context(), &c, testLog())
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	s, err := zmqpeer.NewSender(zmq.Push, c.Notices.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	frame := lmcache.AppendNotification("7")
	if err := s.Send(t.Context(), frame); err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	in := &instance.Instance{Key: instance.Key{Role: instance.Prefill, Address: "127.0.0.1:8100"}, Record: c.Facts}
	a := lmcache.Asker{HTTP: &http.Client{Transport: transport}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if err := a.Await(ctx, in, "7", 1); err != nil {
		t.Error(err)
	}
}
