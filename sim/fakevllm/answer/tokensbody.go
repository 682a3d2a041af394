package answer

import (
	"strconv"

	"github.com/pdmesh/pdmesh/sim/fakevllm/jsontext"
)

// AppendTokenChoice renders the token ids of one choice, and what goes with them.
func AppendTokenChoice(b []byte, ln *Lane, ids []int, finish string) []byte {
	b = strconv.AppendInt(append(b, `{"index":`...), int64(ln.Index), 10)
	b = append(b, `,"finish_reason":`...)
	if finish == "" {
		b = append(b, `null,"stop_reason":null`...)
	} else {
		b = AppendReason(append(jsontext.AppendString(b, finish), `,"stop_reason":`...), ln.Seq.Reason)
	}
	b = jsontext.AppendInts(append(b, `,"token_ids":`...), ids)
	return append(b, `,"routed_experts":null,"sampling_mask":null,"weight_versions":null,"logprobs":null}`...)
}

// TokensBody renders the whole answer of /inference/v1/generate.
func (j *Reply) TokensBody(lanes []Lane) []byte {
	b := jsontext.AppendString(append(make([]byte, 0, 1024), `{"request_id":`...), j.ID)
	b = jsontext.AppendString(append(b, `,"model":`...), j.ServedAs)
	b = strconv.AppendInt(append(b, `,"created":`...), j.Created, 10)
	b = append(b, `,"usage":`...)
	completion := 0
	for i := range lanes {
		completion += lanes[i].Seq.N
	}
	b = j.AppendUsage(b, len(j.Prompts[0]), completion, true, true)
	b = append(b, `,"prompt_logprobs":null,"prompt_token_id_logprobs":null,"prompt_token_ids":`...)
	b = appendMaybeInts(b, j.Prompts[0], j.ReturnTokenIDs)
	b = append(b, `,"mm_placeholders":null,"metrics":null,"kv_transfer_params":`...)
	if j.HandedOver == nil {
		b = append(b, "null"...)
	}
	b = append(append(b, j.HandedOver...), `,"ec_transfer_params":null,"output_mode":"tokens","choices":[`...)
	for i := range lanes {
		if i > 0 {
			b = append(b, ',')
		}
		b = AppendTokenChoice(b, &lanes[i], lanes[i].Tokens, lanes[i].Seq.Finish)
	}
	return append(b, "]}"...)
}
