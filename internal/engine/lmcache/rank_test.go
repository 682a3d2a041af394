package lmcache_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/engine/lmcache"
	"github.com/pdmesh/pdmesh/internal/engine/zmq"
	"github.com/pdmesh/pdmesh/sim/fakevllm/connector"
	"github.com/pdmesh/pdmesh/sim/testkit/zmqpeer"
)

// rank is a tensor-parallel rank of a prefill engine with its connection.
type rank struct {
	t *testing.T
	s *zmqpeer.Sender
}

func newRank(t *testing.T, to *lmcache.Receiver) *rank {
	t.Helper()
	s, err := zmqpeer.NewSender(zmq.Push, "tcp://"+to.Addr().String())
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return &rank{t, s}
}

func (r *rank) notify(id string) {
	r.t.Helper()
	require.NoError(r.t, r.s.Send(r.t.Context(), connector.Notification(id)))
}

// An invalid message only causes a log line, and a prefill engine that reconnects is received again.
func TestReceiver_SurvivesInvalidMessages(t *testing.T) {
	t.Parallel()
	r, inbox, _, _ := bridge(t)
	bad := newRank(t, r)
	require.NoError(t, bad.s.Send(t.Context(), []byte("nonsense")))
	require.NoError(t, bad.s.Send(t.Context(), []byte("two"), []byte("frames")))
	bad.notify("1")
	bad.s.Close() // the engine restarts
	newRank(t, r).notify("2")
	for _, id := range []string{"1", "2"} {
		assert.NoError(t, inbox.Await(t.Context(), id, 1))
	}
}
