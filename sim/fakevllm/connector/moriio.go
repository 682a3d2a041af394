package connector

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/pdmesh/pdmesh/internal/engine/zmq"
	"github.com/pdmesh/pdmesh/sim/fakevllm/jsontext"
	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
	"github.com/pdmesh/pdmesh/sim/fakevllm/transfer"
	"github.com/pdmesh/pdmesh/sim/testkit/zmqpeer"
)

// moriio is vLLM's MoRIIOConnector. Its engines find each other by the ids of their requests
// or by kv_transfer_params, as vLLM 0.32 does (moriio_common.py).
type moriio struct {
	transferring
	asked  sync.Map // MoRIIOParams of a producer's transfers by transfer_id
	tokens sync.Map // those that were handed out, by transfer_id
}

// Start brings up the port that partners find the engine by.
func (m *moriio) Start(ctx context.Context) (err error) {
	m.keep()
	if m.side, err = transfer.StartSide(ctx, m.At.Side, m.answer); err != nil {
		return err
	}
	if host, port, splitErr := net.SplitHostPort(m.At.Side); splitErr == nil && port == "0" { // it is configured: the same in every life
		m.At.Side = net.JoinHostPort(host, strconv.Itoa(m.side.Port()))
	}
	return nil
}

// Close ends it.
func (m *moriio) Close() { m.side.Close() }

// ZMQAddress is what an engine says of itself.
func (m *moriio) ZMQAddress() string {
	host, port := m.advertised(m.side)
	return fmt.Sprintf("host:%s,handshake:%d,notify:%d", host, port, port)
}

// Leg knows the transfer.
func (m *moriio) Leg(*Request) Leg {
	return &moriioLeg{transferLeg: transferLeg{t: &m.transferring}, m: m}
}

type moriioLeg struct {
	transferLeg
	m *moriio
}

// Begin begins the transfer or asks for one.
func (l *moriioLeg) Begin(r *Request) *pydantic.Error {
	m := l.m
	rid := r.ID + "-0-" + model.Hex16(model.Mix(uint64(time.Now().UnixNano())))[:8] //nolint:gosec // any bits do
	k := ParseMoRIIO(r.KV, rid, m.Mode)
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
			m.asked.Store(k.TransferID, k)
		}
	case k.Load && (m.Mode == MoRIIOWrite || k.Blocks):
		l.fetch(func() transfer.Fetched { return m.pull(k) })
	case m.Mode == MoRIIORead && m.Role == RoleDecode:
		// It takes the prompt for loaded, whatever the request says.
		m.mislead(r, "a consumer in READ mode without transfer params")
	case m.Role != RolePrefill:
		m.countLocal(r)
	}
	return nil
}

// pull asks a prefill engine whose address is known.
func (m *moriio) pull(k MoRIIOParams) transfer.Fetched {
	ctx, cancel := m.context()
	defer cancel()
	host, port := m.advertised(m.side)
	return transfer.Fetch(ctx, k.Peer, transfer.Question{
		Claim: transfer.Claim{RequestID: k.TransferID, Token: k.Token}, Peer: net.JoinHostPort(host, strconv.Itoa(port)), TP: m.TPSize, AssumedTP: k.TP,
	})
}

// Refuse has prefill free the blocks of a request that this engine refuses in READ mode, as NIXL does.
func (m *moriio) Refuse(ctx context.Context, kv []byte) {
	if m.Mode != MoRIIORead || Minor(m.Version) < 21 {
		return
	}
	if k := ParseMoRIIO(kv, "", m.Mode); k.Load && k.Blocks && k.Fatal == "" {
		_ = transfer.Ask(ctx, k.Peer, transfer.Question{Op: "free", Claim: transfer.Claim{RequestID: k.TransferID}}) // else it expires
	}
}

// End renders what a prefill's answer carries, where it can.
func (l *moriioLeg) End(r *Request, finish string, answered bool) {
	if !l.offer(r, finish) || !answered {
		return
	}
	m := l.m
	host, port := m.advertised(m.side)
	token := NewToken()
	m.tokens.Store(l.id, token)
	r.TransferParams = AppendMoRIIO(make([]byte, 0, 768), host, port, m.TPSize, len(r.Prompts[0]), l.id, token)
}

// Inspect is what a proxy owes to such an engine.
func (m *moriio) Inspect(r *Request) string {
	if k := ParseMoRIIO(r.KV, r.ID, m.Mode); m.Role == RolePrefill && (!k.Produce || strings.HasPrefix(k.TransferID, "sidecar-")) {
		return notPrefill
	}
	return ""
}

var (
	errElsewhere = errors.New("timeout: prefill has written to another engine")
	errBlocks    = errors.New("the blocks are not those that were handed over")
)

// answer handles a question on the side channel of a producer.
func (m *moriio) answer(q transfer.Question) (prompt uint64, err error) {
	if q.Op == "free" {
		m.transfers.Drop(q.RequestID)
		return 0, nil
	}
	if m.Mode == MoRIIORead && !m.transfers.Holds(q.RequestID, time.Now()) {
		return 0, nil // a one-sided read: what is in the blocks now is taken for the prompt's
	}
	if prompt, err = m.transfers.Pull(q.RequestID); err != nil {
		return 0, err
	}
	token, _ := m.tokens.Load(q.RequestID)
	asked, _ := m.asked.Load(q.RequestID)
	k, _ := asked.(MoRIIOParams)
	switch {
	case m.Mode == MoRIIORead && token != any(q.Token):
		return 0, errBlocks
	case m.Mode == MoRIIOWrite && k.Peer != q.Peer:
		timer := time.NewTimer(m.TransferTimeout)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-m.Done:
		}
		return 0, errElsewhere
	case q.AssumedTP != 0 && q.AssumedTP != m.TPSize, m.Mode == MoRIIOWrite && k.TP != 0 && k.TP != q.TP:
		prompt = 0 // ranks are mapped wrongly, and no engine reports it
	}
	return prompt, nil
}

// PingInterval is that of vLLM's MoRI-IO engines.
const PingInterval = 3 * time.Second

// Announce begins the pings, by which an engine registers itself.
func (m *moriio) Announce() error {
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

// ping registers the engine with a proxy for as long as this incarnation lasts.
func (m *moriio) ping(to *zmqpeer.Sender) {
	defer to.Close()
	tick := time.NewTicker(m.PingInterval)
	defer tick.Stop()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for index := int64(1); ; index++ {
		if !m.Controls.muted.Load() {
			_ = to.Send(ctx, m.pingMessage(index)) // the proxy may be away; the next ping repeats it
		}
		select {
		case <-m.Done:
			return
		case <-tick.C:
		}
	}
}

// pingMessage is the registration of vLLM 0.20 and later, or of those before.
func (m *moriio) pingMessage(index int64) []byte {
	role := "D"
	if m.Role == RolePrefill {
		role = "P"
	}
	_, mode, _ := strings.Cut(strings.ToUpper(string(m.Mode)), "_")
	ping := map[string]any{"transfer_mode": mode, "dp_size": 1, "tp_size": m.TPSize}
	if m.PingOld {
		_, port := m.advertised(m.side)
		ping["type"], ping["role"], ping["request_address"] = "register", role, "http://"+m.HTTP+"/v1/completions"
		ping["handshake_port"], ping["notify_port"], ping["index"] = port, port, index
	} else {
		ping["type"], ping["http_address"], ping["zmq_address"] = role, m.HTTP, m.ZMQAddress()
	}
	b, err := msgp.AppendMapStrIntf(nil, ping)
	if err != nil {
		panic(err) // numbers and texts
	}
	return b
}

var (
	moriioPrefillAddr = regexp.MustCompile(`___prefill_addr_(.+?)___decode_addr_`)
	moriioDecodeAddr  = regexp.MustCompile(`___decode_addr_(.+)_[0-9a-f]{32}(?:-.*)?$`)
)

// MoRIIOParams is a parsed kv_transfer_params.
type MoRIIOParams struct {
	Produce, Load bool
	TransferID    string
	Peer          string // host:port of the other engine's notify port
	TP            int    // of the other engine; 0 is "as mine"
	Blocks        bool   // remote_block_ids says something
	Token         string // of what a prefill handed over, "-" for none
	Fatal         string // the exception that ends the engine
}

// ParseMoRIIO reads the field as the connector does. rid is the engine's own id of the
// request.
func ParseMoRIIO(raw []byte, rid string, mode Mode) MoRIIOParams {
	k := MoRIIOParams{Token: "-"}
	members, err := membersOf(raw)
	if err != nil || len(members) == 0 {
		return k
	}
	k.Produce, k.Load = pydantic.Truthy(members["do_remote_decode"]), pydantic.Truthy(members["do_remote_prefill"])
	if json.Unmarshal(members["transfer_id"], &k.TransferID) != nil || k.TransferID == "" {
		if mode == MoRIIORead {
			k.Fatal = "KeyError: 'transfer_id'"
			return k
		}
		k.TransferID = "sidecar-" + rid // another one than the partner's: the ids of engines differ
	}
	if k.Produce && mode == MoRIIORead {
		return k // nothing else is read
	}
	for _, name := range []string{"remote_block_ids", "remote_engine_id"} {
		if _, ok := members[name]; !ok {
			k.Fatal = "KeyError: '" + name + "'"
			return k
		}
	}
	k.Blocks = pydantic.Truthy(members["remote_block_ids"])
	if k.Load && mode == MoRIIORead && !k.Blocks {
		return k
	}
	if k.Load && mode == MoRIIORead {
		if k.Token = string(members[tokenField]); k.Token == "" || string(members[extraField]) != extraValue {
			k.Token = "0" // which fits no offer
		}
	}
	k.TP = cmp.Or(memberInt(members, "remote_tp_size"), memberInt(members, "tp_size"))
	k.Peer, k.Fatal = moriioPeer(members, rid, k.Produce)
	return k
}

// moriioPeer finds the other engine, first in the id.
func moriioPeer(members map[string]json.RawMessage, rid string, producer bool) (addr, fatal string) {
	find := moriioPrefillAddr
	if producer {
		find = moriioDecodeAddr
	}
	if m := find.FindStringSubmatch(rid); m != nil {
		parts := map[string]string{}
		for segment := range strings.SplitSeq(m[1], ",") {
			key, value, _ := strings.Cut(segment, ":")
			parts[strings.TrimSpace(key)] = strings.TrimSpace(value)
		}
		_, errH := strconv.Atoi(parts["handshake"])
		_, errN := strconv.Atoi(parts["notify"])
		if parts["host"] == "" || errH != nil || errN != nil {
			return "", fmt.Sprintf("ValueError: Malformed zmq_address %q", m[1])
		}
		return net.JoinHostPort(parts["host"], parts["notify"]), ""
	}
	var host string
	notify, handshake := memberInt(members, "remote_notify_port"), memberInt(members, "remote_handshake_port")
	if json.Unmarshal(members["remote_host"], &host) != nil || host == "" || notify == 0 || handshake == 0 {
		return "", "ValueError: request_id does not embed a peer zmq_address and kv_transfer_params is missing one or more sidecar-fallback keys"
	}
	return net.JoinHostPort(host, strconv.Itoa(notify)), ""
}

func memberInt(members map[string]json.RawMessage, name string) int {
	n, _ := strconv.Atoi(strings.Trim(string(members[name]), `"`))
	return n
}

// AppendMoRIIO renders what a prefill's answer carries (request_finished), with an
// unknown field and an integer that no float64 can hold.
func AppendMoRIIO(dst []byte, host string, port, tpSize, promptLen int, transferID, token string) []byte {
	blocks := make([]int, min((promptLen+15)/16, 64))
	for i := range blocks {
		blocks[i] = i
	}
	return jsontext.Append(dst, `{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[$],"remote_engine_id":$,"remote_host":$,`+
		`"remote_handshake_port":$,"remote_notify_port":$,"remote_dp_rank":0,"remote_dp_rank_override":true,"remote_dp_size":1,"remote_dp_size_local":1,`+
		`"tp_size":$,"transfer_id":$,"`+tokenField+`":$,"`+extraField+`":$}`,
		blocks, net.JoinHostPort(host, strconv.Itoa(port)), host, port, port, tpSize, transferID, jsontext.Raw(token), jsontext.Raw(extraValue))
}
