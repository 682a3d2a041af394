package answer

import "github.com/pdmesh/pdmesh/sim/fakevllm/jsontext"

// AppendTokenChoice renders the token ids of one choice, and what goes with them.
func AppendTokenChoice(b []byte, ln *Lane, ids []int, finish string) []byte {
	var reason, stop any
	if finish != "" {
		reason, stop = finish, ln.Seq.Reason
	}
	return jsontext.Append(b, `{"index":$,"finish_reason":$,"stop_reason":$,"token_ids":$,"routed_experts":null,"sampling_mask":null,"weight_versions":null,"logprobs":null}`,
		ln.Index, reason, stop, ids)
}

// TokensBody renders the whole answer of /inference/v1/generate.
func (j *Reply) TokensBody(lanes []Lane) []byte {
	completion := 0
	var choices []byte
	for i := range lanes {
		completion += lanes[i].Seq.N
		if i > 0 {
			choices = append(choices, ',')
		}
		choices = AppendTokenChoice(choices, &lanes[i], lanes[i].Tokens, lanes[i].Seq.Finish)
	}
	return jsontext.Append(nil, `{"request_id":$,"model":$,"created":$,"usage":$,"prompt_logprobs":null,"prompt_token_id_logprobs":null,"prompt_token_ids":$,`+
		`"mm_placeholders":null,"metrics":null,"kv_transfer_params":$,"ec_transfer_params":null,"output_mode":"tokens","choices":[$]}`,
		j.ID, j.ServedAs, j.Created, raw(j.AppendUsage(nil, len(j.Prompts[0]), completion, true, true)), maybe(j.Prompts[0], j.ReturnTokenIDs), raw(j.HandedOver), raw(choices))
}
