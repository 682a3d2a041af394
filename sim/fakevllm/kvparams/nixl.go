package kvparams

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"

	"github.com/pdmesh/pdmesh/sim/fakevllm/handover"
	"github.com/pdmesh/pdmesh/sim/fakevllm/jsontext"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
)

// Form is what kv_transfer_params asks for.
type Form int

const (
	Absent  Form = iota
	Produce      // the six-field form of a prefill
	Load         // a hand-over to load
	Bad          // anything else: vLLM warns and computes the prompt itself
	Fatal        // something is missing that the engine does not ask about: a KeyError ends it
)

// NIXLParams is a parsed kv_transfer_params.
type NIXLParams struct {
	Form  Form
	Why   string // of Bad
	Host  string
	Port  int
	Claim handover.Claim
}

// ParseNIXL reads the field as the NIXL connector does in one of its modes, and vllm-ascend's. The prefill
// form is held to its convention, six members of which four are null.
func ParseNIXL(raw []byte, mode Mode) NIXLParams {
	if raw == nil {
		return NIXLParams{}
	}
	members := make(map[string][]byte, 16)
	if err := pydantic.ForEachMember(raw, func(key string, raw []byte) error {
		members[key] = raw
		return nil
	}); err != nil {
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

func parseProduce(members map[string][]byte) NIXLParams {
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

func parseLoad(members map[string][]byte, mode Mode) NIXLParams {
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
		k.Claim.Token = "" // no engine gives a hand-over away for this
	}
	return k
}

// AppendHandover renders what a prefill's response carries, with the newest
// fields, an unknown one, and an integer no float64 can hold.
func AppendHandover(dst []byte, mode Mode, engineID, requestID, host string, port, promptLen int, token string) []byte {
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
