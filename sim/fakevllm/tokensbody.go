package fakevllm

import (
	"strconv"

	"github.com/pdmesh/pdmesh/sim/fakevllm/jsontext"
)

// appendTokenChoice renders the token ids of one choice, and what goes with them.
func appendTokenChoice(b []byte, ln *lane, ids []int, finish string) []byte {
	b = strconv.AppendInt(append(b, `{"index":`...), int64(ln.index), 10)
	b = append(b, `,"finish_reason":`...)
	if finish == "" {
		b = append(b, `null,"stop_reason":null`...)
	} else {
		b = appendReason(append(jsontext.AppendString(b, finish), `,"stop_reason":`...), ln.seq.Reason)
	}
	b = jsontext.AppendInts(append(b, `,"token_ids":`...), ids)
	return append(b, `,"routed_experts":null,"sampling_mask":null,"weight_versions":null,"logprobs":null}`...)
}

// tokensBody renders the whole answer of /inference/v1/generate.
func (j *reply) tokensBody(lanes []lane) []byte {
	b := jsontext.AppendString(append(make([]byte, 0, 1024), `{"request_id":`...), j.id)
	b = jsontext.AppendString(append(b, `,"model":`...), j.model)
	b = strconv.AppendInt(append(b, `,"created":`...), j.created, 10)
	b = append(b, `,"usage":`...)
	completion := 0
	for i := range lanes {
		completion += lanes[i].seq.N
	}
	b = j.appendUsage(b, len(j.Prompts[0]), completion, true, true)
	b = append(b, `,"prompt_logprobs":null,"prompt_token_id_logprobs":null,"prompt_token_ids":`...)
	b = appendMaybeInts(b, j.Prompts[0], j.ReturnTokenIDs)
	b = append(b, `,"mm_placeholders":null,"metrics":null,"kv_transfer_params":`...)
	if j.kvJSON == nil {
		b = append(b, "null"...)
	}
	b = append(append(b, j.kvJSON...), `,"ec_transfer_params":null,"output_mode":"tokens","choices":[`...)
	for i := range lanes {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendTokenChoice(b, &lanes[i], lanes[i].tokens, lanes[i].seq.Finish)
	}
	return append(b, "]}"...)
}
