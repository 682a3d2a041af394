package kvparams

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"

	"github.com/pdmesh/pdmesh/sim/fakevllm/jsontext"
	"github.com/pdmesh/pdmesh/sim/fakevllm/transfer"
)

// Form is what kv_transfer_params asks for.
type Form int

// The forms.
const (
	Absent  Form = iota
	Produce      // the six-field form of a prefill
	Load         // a KV cache to load
	Bad          // anything else: vLLM warns and computes the prompt itself
	Fatal        // something is missing that the engine does not ask about: a KeyError ends it
)

// NIXLParams is a parsed kv_transfer_params.
type NIXLParams struct {
	Form  Form
	Why   string // of Bad
	Host  string
	Port  int
	Claim transfer.Claim
}

// ParseNIXL reads the field as the NIXL connector does in one of its modes, and vllm-ascend's. The prefill
// form is held to its convention, six members of which four are null.
func ParseNIXL(raw []byte, mode Mode) NIXLParams {
	members, err := membersOf(raw)
	if err != nil {
		return NIXLParams{Form: Bad, Why: err.Error()}
	}
	if len(members) == 0 {
		return NIXLParams{} // an empty object is falsy in vLLM
	}
	produce, load := string(members["do_remote_decode"]), string(members["do_remote_prefill"])
	switch {
	case !isBool(produce) || !isBool(load):
		return NIXLParams{Form: Bad, Why: "do_remote_decode and do_remote_prefill must both be booleans"}
	case produce == "true" && load == "true":
		return NIXLParams{Form: Bad, Why: "do_remote_decode and do_remote_prefill are both true"}
	case produce == "true":
		return parseProduce(members)
	case load == "true":
		return parseLoad(members, mode)
	}
	return NIXLParams{Form: Bad, Why: "neither do_remote_decode nor do_remote_prefill is true"}
}

func isBool(s string) bool { return s == "true" || s == "false" }

func parseProduce(members map[string]json.RawMessage) NIXLParams {
	for _, key := range []string{"remote_engine_id", "remote_block_ids", "remote_host", "remote_port"} {
		if string(members[key]) != "null" {
			return NIXLParams{Form: Bad, Why: "the prefill form has " + key + " null"}
		}
	}
	if len(members) != 6 {
		return NIXLParams{Form: Bad, Why: fmt.Sprintf("the prefill form has 6 members, not %d", len(members))}
	}
	return NIXLParams{Form: Produce}
}

func parseLoad(members map[string]json.RawMessage, mode Mode) NIXLParams {
	k := NIXLParams{Form: Load}
	bad := func(format string, args ...any) NIXLParams {
		return NIXLParams{Form: Bad, Why: fmt.Sprintf(format, args...)}
	}
	if mode == NIXLPush {
		for _, key := range []string{"remote_engine_id", "remote_host", "remote_port", "tp_size"} {
			if members[key] == nil {
				return NIXLParams{Form: Fatal, Why: "KeyError: '" + key + "'"}
			}
		}
	}
	for key, into := range map[string]*string{
		"remote_engine_id": &k.Claim.EngineID, "remote_request_id": &k.Claim.RequestID, "remote_host": &k.Host,
	} {
		if json.Unmarshal(members[key], into) != nil || *into == "" {
			return bad("%s must be a string", key)
		}
	}
	if json.Unmarshal(members["remote_port"], &k.Port) != nil || k.Port < 1 || k.Port > 65535 {
		return bad("remote_port must be a port number")
	}
	var blocks []json.RawMessage
	if mode != NIXLPush && (json.Unmarshal(members["remote_block_ids"], &blocks) != nil || blocks == nil) {
		return bad("remote_block_ids must be a list")
	}
	k.Claim.Token = string(members[tokenField])
	if string(members[extraField]) != extraValue {
		k.Claim.Token = "" // which fits no offer
	}
	return k
}

// AppendNIXL appends what the response of a prefill carries, with the newest fields, an unknown
// one, and an integer that no float64 can hold.
func AppendNIXL(dst []byte, mode Mode, engineID, requestID, host string, port, promptLen int, token string) []byte {
	blocks := make([]int, min((promptLen+15)/16, 64))
	first := rand.IntN(1 << 16)
	for i := range blocks {
		blocks[i] = first + i
	}
	dst = jsontext.Append(dst, `{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[$,[]],"remote_engine_id":$,"remote_request_id":$,`+
		`"remote_host":$,"remote_port":$`, blocks, engineID, requestID, host, port)
	if mode == Ascend {
		dst = jsontext.Append(dst, `,"remote_pcp_size":1,"remote_dcp_size":1,"remote_ptp_size":1,"last_token_id":17,"remote_multi_nodes_meta_mapping":{},`+
			`"num_prompt_blocks":$,"remote_block_size":[16]`, (promptLen+15)/16)
	} else {
		how := "pull"
		if mode == NIXLPush {
			how = "push"
		}
		dst = jsontext.Append(dst, `,"tp_size":1,"dcp_size":1,"pp_size":1,"remote_num_tokens":$,"remote_blocks_expiry_time":null,"transfer_mode":$`, promptLen, how)
	}
	return jsontext.Append(dst, `,"`+tokenField+`":$,"`+extraField+`":$}`, jsontext.Raw(token), jsontext.Raw(extraValue))
}
