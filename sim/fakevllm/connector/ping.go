package connector

import (
	"context"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/pdmesh/pdmesh/internal/zmq"
	"github.com/pdmesh/pdmesh/sim/fakevllm/kvparams"
	"github.com/pdmesh/pdmesh/sim/testkit/zmqpeer"
)

// PingInterval is that of vLLM's MoRI-IO engines.
const PingInterval = 3 * time.Second

// Announce begins the pings, by which an engine registers itself.
func (m *MoRIIO) Announce() error {
	if m.PingTo == "" {
		return nil
	}
	to, err := zmqpeer.NewSender(zmq.Dealer, m.PingTo)
	if err != nil {
		return err
	}
	m.Work.Go(func() { m.ping(to) })
	return nil
}

// ping tells a proxy of the engine for as long as this life lasts.
func (m *MoRIIO) ping(to *zmqpeer.Sender) {
	defer to.Close()
	tick := time.NewTicker(m.PingInterval)
	defer tick.Stop()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for index := int64(1); ; index++ {
		if !m.Controls.muted.Load() {
			_ = to.Send(ctx, m.pingMessage(index)) // nobody may be there; the next one says it again
		}
		select {
		case <-m.Done:
			return
		case <-tick.C:
		}
	}
}

// pingMessage is the registration of vLLM 0.20 and later, or of those before.
func (m *MoRIIO) pingMessage(index int64) []byte {
	role := "D"
	if m.Role == RolePrefill {
		role = "P"
	}
	mode := "WRITE"
	if m.Mode == kvparams.MoRIIORead {
		mode = "READ"
	}
	texts := [][2]string{{"type", role}, {"http_address", m.HTTP}, {"zmq_address", m.ZMQAddress()}, {"transfer_mode", mode}}
	numbers := map[string]int64{"dp_size": 1, "tp_size": int64(m.TPSize)}
	if m.PingOld {
		_, port := m.advertised(m.side)
		texts = [][2]string{{"type", "register"}, {"role", role}, {"request_address", "http://" + m.HTTP + "/v1/completions"}, {"transfer_mode", mode}}
		numbers["handshake_port"], numbers["notify_port"], numbers["index"] = int64(port), int64(port), index
	}
	b := msgp.AppendMapHeader(nil, uint32(len(texts)+len(numbers))) //nolint:gosec // a handful
	for _, t := range texts {
		b = msgp.AppendString(msgp.AppendString(b, t[0]), t[1])
	}
	for name, n := range numbers {
		b = msgp.AppendInt64(msgp.AppendString(b, name), n)
	}
	return b
}
