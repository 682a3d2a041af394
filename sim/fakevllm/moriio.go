package fakevllm

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pdmesh/pdmesh/sim/fakevllm/handover"
	"github.com/pdmesh/pdmesh/sim/fakevllm/jsontext"
	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
)

// MoRI-IO engines find each other by the ids of their requests or by
// kv_transfer_params, as vLLM 0.32 does (moriio_common.py). The side channel stands
// for ZMQ and RDMA, in both modes:
//
//	PULL =<transfer id> =<decode's address> <decode's TP size> <what it takes prefill's to be> <token>
//	OK <hash of the prompt that was computed> | ERR <reason>

var (
	moriioPrefillAddr = regexp.MustCompile(`___prefill_addr_(.+?)___decode_addr_`)
	moriioDecodeAddr  = regexp.MustCompile(`___decode_addr_(.+)_[0-9a-f]{32}(?:-.*)?$`)
)

// moriioRequest is a parsed kv_transfer_params.
type moriioRequest struct {
	produce, load bool
	transferID    string
	peer          string // host:port of the other engine's notify port
	tp            int    // of the other engine; 0 is "as mine"
	blocks        bool   // remote_block_ids says something
	token         string // of what a prefill handed over, "-" for none
	fatal         string // the exception that ends the engine
}

// parseMoRIIO reads the field as the connector does. rid is the engine's own id of the
// request.
func parseMoRIIO(raw []byte, rid string, mode Mode) moriioRequest {
	k := moriioRequest{token: "-"}
	members := make(map[string][]byte, 16)
	if raw == nil || pydantic.ForEachMember(raw, func(key string, raw []byte) error { members[key] = raw; return nil }) != nil || len(members) == 0 {
		return k
	}
	k.produce, k.load = pydantic.Truthy(members["do_remote_decode"]), pydantic.Truthy(members["do_remote_prefill"])
	if json.Unmarshal(members["transfer_id"], &k.transferID) != nil || k.transferID == "" {
		if mode == MoRIIORead {
			k.fatal = "KeyError: 'transfer_id'"
			return k
		}
		k.transferID = "sidecar-" + rid // another one than the partner's: the ids of engines differ
	}
	if k.produce && mode == MoRIIORead {
		return k // nothing else is read
	}
	for _, name := range []string{"remote_block_ids", "remote_engine_id"} {
		if _, ok := members[name]; !ok {
			k.fatal = "KeyError: '" + name + "'"
			return k
		}
	}
	k.blocks = pydantic.Truthy(members["remote_block_ids"])
	if k.load && mode == MoRIIORead && !k.blocks {
		return k
	}
	if k.load && mode == MoRIIORead {
		if k.token = string(members[tokenField]); k.token == "" || string(members[extraField]) != extraValue {
			k.token = "0" // no engine gives a hand-over away for this
		}
	}
	k.tp = memberInt(members, "remote_tp_size")
	if k.tp == 0 {
		k.tp = memberInt(members, "tp_size")
	}
	k.peer, k.fatal = moriioPeer(members, rid, k.produce)
	return k
}

// moriioPeer finds the other engine, first in the id.
func moriioPeer(members map[string][]byte, rid string, producer bool) (addr, fatal string) {
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

func memberInt(members map[string][]byte, name string) int {
	n, _ := strconv.Atoi(strings.Trim(string(members[name]), `"`))
	return n
}

// startMoRIIO does what the connector does before the request runs. The error is that
// of an engine which has died.
func (x *exchange) startMoRIIO(j *job) *pydantic.Error {
	l := x.life
	s := l.server
	rid := j.id + "-0-" + model.Hex16(model.Mix(uint64(time.Now().UnixNano())))[:8] //nolint:gosec // any bits do
	k := parseMoRIIO(j.kv, rid, s.opt.Mode)
	if k.load && s.opt.Role == RolePrefill || k.produce && s.opt.Role == RoleDecode {
		s.violation("%s engine, %s: a leg for the other role", s.opt.Role, x.id)
	}
	if k.fatal != "" {
		s.violation("%s engine, %s: %s", s.opt.Role, x.id, k.fatal)
		l.count.crashes.Add(1)
		s.Kill()
		return pydantic.InternalError()
	}
	many := len(j.prompts) > 1 || j.n > 1
	switch {
	case many && (k.load || k.produce):
		x.reused(k.transferID, "several answers share it")
		if k.load {
			j.fetching = make(chan fetched)
		}
	case k.produce:
		j.mooncake.transferID = k.transferID
		if j.offers = l.transfers.Begin(k.transferID); !j.offers {
			x.reused(k.transferID, "a prefill has had it")
			break
		}
		l.moriio.put(k.transferID, k)
	case k.load && (s.opt.Mode == MoRIIOWrite || k.blocks):
		x.fetchMoRIIO(j, k)
	case s.opt.Mode == MoRIIORead && s.opt.Role == RoleDecode:
		// It takes the prompt for loaded, whatever the request says.
		j.wrongKV = true
		s.refusals.add(x.id + ": a consumer in READ mode without a hand-over: the answer is wrong")
		l.count.wrongKV.Add(1)
	case s.opt.Role != RolePrefill:
		l.count.localPrefills.Add(int64(len(j.prompts)))
	}
	return nil
}

func (x *exchange) fetchMoRIIO(j *job, k moriioRequest) {
	l := x.life
	j.fetching = make(chan fetched, 1)
	host, port := l.advertised(l.cores[0])
	line := fmt.Sprintf("PULL =%s =%s %d %d %s", url.QueryEscape(k.transferID),
		url.QueryEscape(net.JoinHostPort(host, strconv.Itoa(port))), l.server.opt.TPSize, k.tp, k.token)
	l.fetches.Go(func() { j.fetching <- l.fetchFrom(k.peer, line) })
}

// appendMoRIIO renders what a prefill's answer carries (request_finished), with an
// unknown field and an integer that no float64 can hold.
func (x *exchange) appendMoRIIO(dst []byte, transferID string, promptLen int) []byte {
	l := x.life
	host, port := l.advertised(l.cores[0])
	token := newToken()
	l.moriio.token(transferID, token)
	dst = append(dst, `{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[`...)
	for i := range min((promptLen+15)/16, 64) {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendInt(dst, int64(i), 10)
	}
	dst = append(dst, `]],"remote_engine_id":`...)
	dst = jsontext.AppendString(dst, net.JoinHostPort(host, strconv.Itoa(port)))
	dst = append(dst, `,"remote_host":`...)
	dst = jsontext.AppendString(dst, host)
	dst = fmt.Appendf(dst, `,"remote_handshake_port":%d,"remote_notify_port":%d,"remote_dp_rank":0,"remote_dp_rank_override":true`, port, port)
	dst = fmt.Appendf(dst, `,"remote_dp_size":1,"remote_dp_size_local":1,"tp_size":%d,"transfer_id":`, l.server.opt.TPSize)
	dst = jsontext.AppendString(dst, transferID)
	dst = append(dst, `,"`+tokenField+`":`+token+`,"`+extraField+`":`+extraValue+`}`...)
	return dst
}

// moriioTransfers is what a producer knows of its transfers, besides their state.
type moriioTransfers struct {
	mu     sync.Mutex // guards both maps
	asked  map[string]moriioRequest
	tokens map[string]string
}

func (m *moriioTransfers) put(id string, k moriioRequest) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.asked == nil || len(m.asked) > 1<<16 {
		m.asked, m.tokens = make(map[string]moriioRequest), make(map[string]string)
	}
	m.asked[id] = k
}

func (m *moriioTransfers) token(id, token string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tokens[id] = token
}

func (m *moriioTransfers) of(id string) (k moriioRequest, token string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.asked[id], m.tokens[id]
}

var (
	errElsewhere = errors.New("timeout: prefill has written to another engine")
	errBlocks    = errors.New("the blocks are not those that were handed over")
)

// answerMoRIIO is one question on the side channel of a producer.
func (l *life) answerMoRIIO(line string) string {
	words := strings.Fields(line)
	if len(words) != 6 || words[0] != "PULL" {
		return "ERR " + handover.ErrSideSyntax.Error()
	}
	id, errID := url.QueryUnescape(strings.TrimPrefix(words[1], "="))
	peer, errPeer := url.QueryUnescape(strings.TrimPrefix(words[2], "="))
	consumer, errTP := strconv.Atoi(words[3])
	mine, errMine := strconv.Atoi(words[4])
	if errors.Join(errID, errPeer, errTP, errMine) != nil {
		return "ERR " + handover.ErrSideSyntax.Error()
	}
	if l.server.opt.Mode == MoRIIORead && !l.transfers.Holds(id, time.Now()) {
		// A one-sided read: what stands in the blocks now is taken for the prompt's.
		return "OK 0"
	}
	prompt, err := l.transfers.Pull(id)
	if err != nil {
		return "ERR " + err.Error()
	}
	k, token := l.moriio.of(id)
	own := l.server.opt.TPSize
	switch {
	case l.server.opt.Mode == MoRIIORead && token != words[5]:
		return "ERR " + errBlocks.Error()
	case l.server.opt.Mode == MoRIIOWrite && k.peer != peer:
		timer := time.NewTimer(l.server.opt.TransferTimeout)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-l.done:
		}
		return "ERR " + errElsewhere.Error()
	case mine != 0 && mine != own, l.server.opt.Mode == MoRIIOWrite && k.tp != 0 && k.tp != consumer:
		prompt = 0 // ranks are mapped wrongly, and nobody says so
	}
	return "OK " + strconv.FormatUint(prompt, 16)
}
