package fakevllm

import (
	"net/http"
	"strconv"

	"github.com/pdmesh/pdmesh/sim/fakevllm/fault"
	"github.com/pdmesh/pdmesh/sim/fakevllm/jsontext"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
)

// /inference/v1/generate takes token ids and gives token ids. vLLM has it with
// --enable-scale-out only.

// scaleOutDisabled is vLLM's answer without that option, since 0.32.
func scaleOutDisabled() *pydantic.Error {
	return &pydantic.Error{Status: http.StatusForbidden, Kind: "PermissionDeniedError",
		Message: "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them."}
}

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
func (x *exchange) tokensBody(j *job, lanes []lane) []byte {
	b := jsontext.AppendString(append(make([]byte, 0, 1024), `{"request_id":`...), j.id)
	b = jsontext.AppendString(append(b, `,"model":`...), j.model)
	b = strconv.AppendInt(append(b, `,"created":`...), j.created, 10)
	b = append(b, `,"usage":`...)
	completion := 0
	for i := range lanes {
		completion += lanes[i].seq.N
	}
	b = x.appendUsage(b, j, len(j.Prompts[0]), completion, true, true)
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

// streamIDs answers with one event for each token.
func (x *exchange) streamIDs(j *job) {
	p, ok := x.first(j)
	if !ok {
		x.gone()
		return
	}
	if x.strike(fault.AfterRole, 0) {
		return
	}
	if j.loadErr != nil {
		x.core.stats.Fail.Add(1)
		x.fail(pydantic.InternalError())
		return
	}
	lanes := j.lanes(true)
	ln := &lanes[0]
	head := jsontext.AppendString([]byte(`data: {"request_id":`), j.id)
	for round := 1; ln.seq.Finish == ""; round++ {
		if round > 1 && !x.tick(&p) {
			x.gone()
			return
		}
		id, _ := ln.step()
		x.generated(ln, id)
		b := append(append([]byte(nil), head...), `,"usage":null`...)
		if round == 1 && j.ReturnTokenIDs {
			b = jsontext.AppendInts(append(b, `,"prompt_token_ids":`...), j.Prompts[0])
		}
		b = append(b, `,"output_mode":"tokens","choices":[`...)
		b = append(appendTokenChoice(b, ln, []int{id}, ln.seq.Finish), "]}\n\n"...)
		if !x.write(b) {
			x.gone()
			return
		}
		if x.strike(fault.AfterTokens, round) {
			return
		}
	}
	x.core.finished(ln.seq.Finish)
	x.offer(j, ln.seq.Finish)
	var b []byte
	if j.IncludeUsage {
		b = append(append(b, head...), `,"usage":`...)
		b = x.appendUsage(b, j, len(j.Prompts[0]), ln.seq.N, true, false)
		b = append(b, `,"output_mode":"tokens","choices":[]}`+"\n\n"...)
	}
	if x.write(append(b, "data: [DONE]\n\n"...)) {
		x.completed()
	}
}
