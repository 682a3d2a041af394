package fakevllm

import (
	"net/http"

	"github.com/pdmesh/pdmesh/sim/fakevllm/answer"
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
	lanes := j.Lanes(true)
	ln := &lanes[0]
	head := jsontext.AppendString([]byte(`data: {"request_id":`), j.ID)
	for round := 1; ln.Seq.Finish == ""; round++ {
		if round > 1 && !x.tick(&p) {
			x.gone()
			return
		}
		id, _ := ln.Step()
		x.generated(ln, id)
		b := append(append([]byte(nil), head...), `,"usage":null`...)
		if round == 1 && j.ReturnTokenIDs {
			b = jsontext.AppendInts(append(b, `,"prompt_token_ids":`...), j.Prompts[0])
		}
		b = append(b, `,"output_mode":"tokens","choices":[`...)
		b = append(answer.AppendTokenChoice(b, ln, []int{id}, ln.Seq.Finish), "]}\n\n"...)
		if !x.write(b) {
			x.gone()
			return
		}
		if x.strike(fault.AfterTokens, round) {
			return
		}
	}
	x.core.finished(ln.Seq.Finish)
	x.offer(j, ln.Seq.Finish)
	var b []byte
	if j.IncludeUsage {
		b = append(append(b, head...), `,"usage":`...)
		b = j.AppendUsage(b, len(j.Prompts[0]), ln.Seq.N, true, false)
		b = append(b, `,"output_mode":"tokens","choices":[]}`+"\n\n"...)
	}
	if x.write(append(b, "data: [DONE]\n\n"...)) {
		x.completed()
	}
}
