package zmqregister

import (
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/tinylib/msgp/msgp"

	"github.com/pdmesh/pdmesh/internal/engine/zmq"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// A suspended bridge may receive a ping before it notices the suspension. If the pings then
// end, the instance is removed after a TTL, not after the duration of the suspension.
func TestSweep_PingBeforeSweep(t *testing.T) {
	t.Parallel()
	payload, err := msgp.AppendIntf(nil, map[string]any{
		"type": "P", "http_address": "10.0.0.1:8100", "zmq_address": "host:10.0.0.1,handshake:6301,notify:61005",
		"dp_size": 1, "tp_size": 8, "transfer_mode": "WRITE",
	})
	require.NoError(t, err)
	ping, err := ParsePing(payload)
	require.NoError(t, err)
	log := logrus.New()
	log.SetOutput(t.Output())
	const ttl = 10 * time.Second
	now := time.Now()
	m := &member{ping: ping, pinged: now, leave: func() {}, log: log}
	b := &Bridge{o: Options{TTL: ttl, Log: log}, members: map[instance.Key]*member{ping.Key: m}, swept: now}
	now = now.Add(time.Hour)
	b.handle(t.Context(), zmq.Message{Frames: [][]byte{payload}}, now)
	for range 2 * sweeps {
		b.sweep(now)
		now = now.Add(ttl / sweeps)
	}
	assert.True(t, m.ended, "an instance that has not pinged for %s stays registered", 2*ttl)
}
