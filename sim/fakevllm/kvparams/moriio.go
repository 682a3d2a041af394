package kvparams

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"

	"github.com/pdmesh/pdmesh/sim/fakevllm/jsontext"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
)

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
