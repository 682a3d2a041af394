package fakevllm

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"

	"github.com/pdmesh/pdmesh/sim/fakevllm/handover"
	"github.com/pdmesh/pdmesh/sim/fakevllm/jsontext"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
)

// kvForm is what kv_transfer_params asks for.
type kvForm int

const (
	kvAbsent  kvForm = iota
	kvProduce        // the six-field form of a prefill
	kvLoad           // a hand-over to load
	kvBad            // anything else: vLLM warns and computes the prompt itself
	kvFatal          // something is missing that the engine does not ask about: a KeyError ends it
)

// extraField must come back byte for byte: a proxy that decodes and encodes
// the object turns 1.0 into 1, or é into its escape or back.
const (
	extraField = "x_transfer_hints"
	extraValue = `{"layout":"HND","ratio":1.0,"note":"caf\u00e9 <&> é","big":18446744073709551615}`
	tokenField = "remote_kv_token" //nolint:gosec // the name of a JSON field, no credential
)

// kvRequest is a parsed kv_transfer_params.
type kvRequest struct {
	form  kvForm
	why   string // of kvBad
	host  string
	port  int
	claim handover.Claim
}

// parseKV reads the field as the NIXL connector does in one of its modes, and vllm-ascend's. The prefill
// form is held to its convention, six members of which four are null.
func parseKV(raw []byte, mode Mode) kvRequest {
	if raw == nil {
		return kvRequest{}
	}
	members := make(map[string][]byte, 16)
	if err := pydantic.ForEachMember(raw, func(key string, raw []byte) error {
		members[key] = raw
		return nil
	}); err != nil {
		return kvRequest{form: kvBad, why: err.Error()}
	}
	if len(members) == 0 {
		return kvRequest{} // an empty object is falsy in vLLM
	}
	produce, load := string(members["do_remote_decode"]), string(members["do_remote_prefill"])
	switch {
	case !isBool(produce) || !isBool(load):
		return kvRequest{form: kvBad, why: "do_remote_decode and do_remote_prefill must both be booleans"}
	case produce == "true" && load == "true":
		return kvRequest{form: kvBad, why: "do_remote_decode and do_remote_prefill are both true"}
	case produce == "true":
		return parseProduce(members)
	case load == "true":
		return parseLoad(members, mode)
	}
	return kvRequest{form: kvBad, why: "neither do_remote_decode nor do_remote_prefill is true"}
}

func isBool(s string) bool { return s == "true" || s == "false" }

func parseProduce(members map[string][]byte) kvRequest {
	for _, key := range []string{"remote_engine_id", "remote_block_ids", "remote_host", "remote_port"} {
		if string(members[key]) != "null" {
			return kvRequest{form: kvBad, why: "the prefill form has " + key + " null"}
		}
	}
	if len(members) != 6 {
		return kvRequest{form: kvBad, why: fmt.Sprintf("the prefill form has 6 members, not %d", len(members))}
	}
	return kvRequest{form: kvProduce}
}

func parseLoad(members map[string][]byte, mode Mode) kvRequest {
	k := kvRequest{form: kvLoad}
	bad := func(format string, args ...any) kvRequest {
		return kvRequest{form: kvBad, why: fmt.Sprintf(format, args...)}
	}
	if mode == NIXLPush {
		for _, key := range []string{"remote_engine_id", "remote_host", "remote_port", "tp_size"} {
			if members[key] == nil {
				return kvRequest{form: kvFatal, why: "KeyError: '" + key + "'"}
			}
		}
	}
	for key, into := range map[string]*string{
		"remote_engine_id": &k.claim.EngineID, "remote_request_id": &k.claim.RequestID, "remote_host": &k.host,
	} {
		if json.Unmarshal(members[key], into) != nil || *into == "" {
			return bad("%s must be a string", key)
		}
	}
	if json.Unmarshal(members["remote_port"], &k.port) != nil || k.port < 1 || k.port > 65535 {
		return bad("remote_port must be a port number")
	}
	var blocks []json.RawMessage
	if mode != NIXLPush && (json.Unmarshal(members["remote_block_ids"], &blocks) != nil || blocks == nil) {
		return bad("remote_block_ids must be a list")
	}
	k.claim.Token = string(members[tokenField])
	if string(members[extraField]) != extraValue {
		k.claim.Token = "" // no engine gives a hand-over away for this
	}
	return k
}

// appendHandover renders what a prefill's response carries, with the newest
// fields, an unknown one, and an integer no float64 can hold.
func appendHandover(dst []byte, mode Mode, engineID, requestID, host string, port, promptLen int, token string) []byte {
	dst = append(dst, `{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[`...)
	blocks := (promptLen + 15) / 16
	first := rand.IntN(1 << 16)
	for i := range min(blocks, 64) {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendInt(dst, int64(first+i), 10)
	}
	dst = append(dst, `],[]],"remote_engine_id":`...)
	dst = jsontext.AppendString(dst, engineID)
	dst = append(dst, `,"remote_request_id":`...)
	dst = jsontext.AppendString(dst, requestID)
	dst = append(dst, `,"remote_host":`...)
	dst = jsontext.AppendString(dst, host)
	dst = append(dst, `,"remote_port":`...)
	dst = strconv.AppendInt(dst, int64(port), 10)
	if mode == Ascend {
		dst = append(dst, `,"remote_pcp_size":1,"remote_dcp_size":1,"remote_ptp_size":1,"last_token_id":17,"remote_multi_nodes_meta_mapping":{},"num_prompt_blocks":`...)
		dst = strconv.AppendInt(dst, int64(blocks), 10)
		dst = append(dst, `,"remote_block_size":[16],"`+tokenField+`":`...)
		dst = append(dst, token...)
		return append(dst, `,"`+extraField+`":`+extraValue+`}`...)
	}
	dst = append(dst, `,"tp_size":1,"dcp_size":1,"pp_size":1,"remote_num_tokens":`...)
	dst = strconv.AppendInt(dst, int64(promptLen), 10)
	dst = append(dst, `,"remote_blocks_expiry_time":null,"transfer_mode":"`...)
	if mode == NIXLPush {
		dst = append(dst, `push`...)
	} else {
		dst = append(dst, `pull`...)
	}
	dst = append(dst, `","`+tokenField+`":`...)
	dst = append(dst, token...)
	dst = append(dst, `,"`+extraField+`":`+extraValue...)
	return append(dst, '}')
}

// newToken is a random integer between 2^53 and 2^63, odd, so that a float64
// always spoils it.
func newToken() string {
	return strconv.FormatUint(1<<62+rand.Uint64N(1<<61)|1, 10)
}
