package connector

import (
	"context"
	"encoding/json"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
	"github.com/pdmesh/pdmesh/sim/fakevllm/transfer"
)

// mooncake is vLLM's MooncakeConnector, whose legs know each other by transfer_id alone. The
// decode engine finds the prefill engine through its bootstrap server, and asks
// for the blocks over the side channel, in place of ZMQ and Mooncake's
// transfer engine: see transfer.Fetch.
type mooncake struct {
	transferring
	boot  *bootstrap // nil of a decode
	peers peers
}

// Start brings up what only a producer has: the channel by which its
// blocks are fetched, and the bootstrap server that names it.
func (m *mooncake) Start(ctx context.Context) (err error) {
	if m.Role == RoleDecode {
		return nil
	}
	m.keep()
	if m.side, err = transfer.StartSide(ctx, m.SideChannelAddr, func(q transfer.Question) (uint64, error) { return m.transfers.Pull(q.RequestID) }); err != nil {
		return err
	}
	host, port := m.advertised(m.side)
	m.boot, err = startBootstrap(ctx, m.At.Bootstrap, m.EngineIDs[0], net.JoinHostPort(host, strconv.Itoa(port)), func() { m.Count.BootstrapQueries.Add(1) })
	if err == nil {
		m.At.Bootstrap = m.boot.ln.Addr().String()
	}
	return err
}

// Close ends them.
func (m *mooncake) Close() {
	m.side.Close()
	if m.boot != nil {
		m.boot.close()
	}
}

// Bootstrap is the port of the bootstrap server, 0 for none.
func (m *mooncake) Bootstrap() int {
	if m.boot == nil {
		return 0
	}
	return m.boot.ln.Addr().(*net.TCPAddr).Port
}

// Leg knows the transfer.
func (m *mooncake) Leg(*Request) Leg {
	return &mooncakeLeg{transferLeg: transferLeg{t: &m.transferring}, m: m}
}

type mooncakeLeg struct {
	transferLeg
	m *mooncake
}

// Begin begins the transfer or asks for one.
func (l *mooncakeLeg) Begin(r *Request) *pydantic.Error {
	m, k := l.m, ParseMooncake(r.KV)
	if k.Load && m.Role == RolePrefill || k.Produce && m.Role == RoleDecode {
		// An assertion of the connector fails and takes the engine down.
		m.violate(r, "a leg for the other role")
		return m.crash()
	}
	many := len(r.Prompts) > 1 || r.N > 1
	switch {
	case many && k.TransferID != "" && (k.Load || k.Produce):
		l.share(r, k.TransferID, k.Load)
	case k.Produce && k.TransferID == "":
		m.warn(r, "Missing transfer_id in kv_transfer_params from router!")
	case k.Produce:
		l.produce(r, k.TransferID)
	case k.Load && r.PromptLogprobs != nil:
		// The cache is not read for these; the pull only frees the prefill's blocks.
		if len(k.Missing) == 0 {
			m.Work.Go(func() { _ = m.pull(k) })
		}
		m.countLocal(r)
	case k.Load && len(k.Missing) > 0:
		// vLLM warns that it will not transfer, and then waits all the same, for what
		// no engine sends.
		m.warn(r, "got invalid KVTransferParams: no "+strings.Join(k.Missing, ", "))
		l.fetching = make(chan transfer.Fetched)
	case k.Load:
		l.fetch(func() transfer.Fetched { return m.pull(k) })
	case m.Role != RolePrefill:
		m.countLocal(r)
	}
	return nil
}

func (m *mooncake) warn(r *Request, why string) {
	m.Count.BadParam(r.ID, why)
	m.Log.WithField("request_id", r.ID).Warn(why)
}

// pull gets the blocks of one prefill. A prefill engine that is not there any
// more is no failure until the time is over: ZMQ connects again and again.
func (m *mooncake) pull(k MooncakeParams) transfer.Fetched {
	ctx, cancel := m.context()
	defer cancel()
	addr, err := m.peers.find(ctx, k.EngineID, k.Bootstrap)
	if err != nil {
		return transfer.Fetched{Err: err}
	}
	return transfer.Fetch(ctx, addr, transfer.Question{Claim: transfer.Claim{RequestID: k.TransferID}})
}

// Inspect is what a proxy owes to such an engine.
func (m *mooncake) Inspect(r *Request) string {
	if k := ParseMooncake(r.KV); m.Role == RolePrefill && (!k.Produce || k.TransferID == "") {
		return notPrefill
	}
	return ""
}

// MooncakeParams is a parsed kv_transfer_params.
type MooncakeParams struct {
	Produce, Load bool
	TransferID    string
	EngineID      string
	Bootstrap     string
	Missing       []string // of what a decode needs
}

// ParseMooncake reads the field as the connector does: what is asked for is
// true, names are there or not, and nothing else is looked at.
func ParseMooncake(raw []byte) MooncakeParams {
	var k MooncakeParams
	members, err := membersOf(raw)
	if err != nil || members == nil {
		return k
	}
	k.Load = pydantic.Truthy(members["do_remote_prefill"])
	k.Produce = !k.Load && pydantic.Truthy(members["do_remote_decode"])
	for name, into := range map[string]*string{
		"remote_engine_id": &k.EngineID, "remote_bootstrap_addr": &k.Bootstrap, "transfer_id": &k.TransferID,
	} {
		if json.Unmarshal(members[name], into) != nil || *into == "" {
			k.Missing = append(k.Missing, name)
		}
	}
	slices.Sort(k.Missing)
	return k
}
