package connector

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/pdmesh/pdmesh/sim/fakevllm/handover"
	"github.com/pdmesh/pdmesh/sim/fakevllm/kvparams"
	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
)

// MoRIIO is vLLM's MoRIIOConnector. Its engines find each other by the ids of their requests
// or by kv_transfer_params, as vLLM 0.32 does (moriio_common.py). The side channel stands
// for ZMQ and RDMA, in both modes:
//
//	PULL =<transfer id> =<decode's address> <decode's TP size> <what it takes prefill's to be> <token>
//	OK <hash of the prompt that was computed> | ERR <reason>
type MoRIIO struct {
	transferring
	known partners
	at    string // of the side channel, for the next life
}

// Start brings up the port that partners find the engine by.
func (m *MoRIIO) Start(ctx context.Context) (err error) {
	m.keep()
	m.at = m.At.Side
	if m.side, err = handover.StartSide(ctx, m.at, m.answer); err != nil {
		return err
	}
	if host, port, splitErr := net.SplitHostPort(m.at); splitErr == nil && port == "0" { // it is configured: the same in every life
		m.at = net.JoinHostPort(host, strconv.Itoa(m.side.Port()))
	}
	return nil
}

// Close ends it.
func (m *MoRIIO) Close() { m.closeSide() }

// Addresses are those of this life, for the next one.
func (m *MoRIIO) Addresses() Addresses {
	at := m.At
	at.Side = m.at
	return at
}

// ZMQAddress is what an engine says of itself.
func (m *MoRIIO) ZMQAddress() string {
	host, port := m.advertised(m.side)
	return fmt.Sprintf("host:%s,handshake:%d,notify:%d", host, port, port)
}

// Leg knows the transfer.
func (m *MoRIIO) Leg(*Request) Leg {
	return &moriioLeg{transferLeg: transferLeg{t: &m.transferring}, m: m}
}

type moriioLeg struct {
	transferLeg
	m *MoRIIO
}

// Begin begins the transfer or asks for one.
func (l *moriioLeg) Begin(r *Request) *pydantic.Error {
	m := l.m
	rid := r.ID + "-0-" + model.Hex16(model.Mix(uint64(time.Now().UnixNano())))[:8] //nolint:gosec // any bits do
	k := kvparams.ParseMoRIIO(r.KV, rid, m.Mode)
	if k.Load && m.Role == RolePrefill || k.Produce && m.Role == RoleDecode {
		m.violate(r, "a leg for the other role")
	}
	if k.Fatal != "" {
		m.violate(r, k.Fatal)
		return m.crash()
	}
	many := len(r.Prompts) > 1 || r.N > 1
	switch {
	case many && (k.Load || k.Produce):
		l.share(r, k.TransferID, k.Load)
	case k.Produce:
		if l.produce(r, k.TransferID); l.offers {
			m.known.put(k.TransferID, k)
		}
	case k.Load && (m.Mode == kvparams.MoRIIOWrite || k.Blocks):
		l.fetch(func() handover.Fetched { return m.pull(k) })
	case m.Mode == kvparams.MoRIIORead && m.Role == RoleDecode:
		// It takes the prompt for loaded, whatever the request says.
		m.mislead(r, "a consumer in READ mode without a hand-over")
	case m.Role != RolePrefill:
		m.countLocal(r)
	}
	return nil
}

// pull asks a prefill engine whose address is known.
func (m *MoRIIO) pull(k kvparams.MoRIIOParams) handover.Fetched {
	ctx, cancel := m.context()
	defer cancel()
	host, port := m.advertised(m.side)
	return handover.Fetch(ctx, k.Peer, fmt.Sprintf("PULL =%s =%s %d %d %s", url.QueryEscape(k.TransferID),
		url.QueryEscape(net.JoinHostPort(host, strconv.Itoa(port))), m.TPSize, k.TP, k.Token))
}

// End renders what a prefill's answer carries, where it can.
func (l *moriioLeg) End(r *Request, finish string, answered bool) {
	if !l.offer(r, finish) || !answered {
		return
	}
	m := l.m
	host, port := m.advertised(m.side)
	token := kvparams.NewToken()
	m.known.handOut(l.id, token)
	r.HandedOver = kvparams.AppendMoRIIO(make([]byte, 0, 768), host, port, m.TPSize, len(r.Prompts[0]), l.id, token)
}

// Inspect is what a proxy owes to such an engine.
func (m *MoRIIO) Inspect(r *Request, report func(string)) {
	if m.Role != RolePrefill {
		return
	}
	if k := kvparams.ParseMoRIIO(r.KV, r.ID, m.Mode); !k.Produce || strings.HasPrefix(k.TransferID, "sidecar-") {
		report("kv_transfer_params has not the prefill form")
	}
}
