package fakevllm

import (
	"net/http"
	"strconv"
)

// /inference/v1/generate takes token ids and gives token ids. vLLM has it with
// --enable-scale-out only.

// scaleOutDisabled is vLLM's answer without that option, since 0.32.
func scaleOutDisabled() *apiError {
	return &apiError{status: http.StatusForbidden, kind: "PermissionDeniedError",
		message: "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them."}
}

// readGenerate reads a body of /inference/v1/generate.
func readGenerate(body []byte) (*params, error) {
	p := &params{api: apiGenerate, n: 1, temperature: 1, topP: 1, repetitionPenalty: 1}
	var bad collected
	var ids, sampling []byte
	err := forEachMember(body, func(key string, raw []byte) error {
		if err := validate(raw); err != nil {
			return err
		}
		switch key {
		case "token_ids":
			ids = raw
			return nil
		case "sampling_params":
			sampling = raw
			return nil
		}
		return bad.add(p.generateField(key, raw))
	})
	if err != nil {
		return nil, err
	}
	for key, raw := range map[string][]byte{"token_ids": ids, "sampling_params": sampling} {
		if raw == nil {
			bad.problems = append(bad.problems, problem{kind: "missing", loc: bodyLoc(key), msg: "Field required", input: describe(body)})
		}
	}
	if ids != nil {
		list, err := tokenIDs(ids)
		if err := bad.add(err); err != nil {
			return nil, err
		}
		p.prompts, p.promptText = [][]int{list}, []string{""}
	}
	if sampling != nil {
		if err := bad.add(p.readSampling(sampling)); err != nil {
			return nil, err
		}
	}
	if len(bad.problems) > 0 {
		return nil, complaints(bad.problems...)
	}
	return p, nil
}

func tokenIDs(raw []byte) ([]int, error) {
	if raw[0] != '[' {
		return nil, invalid("list_type", "token_ids", raw, "Input should be a valid list")
	}
	ids, err := laxInts("token_ids", raw)
	if err == nil && len(ids) == 0 {
		err = complaints(problem{kind: "too_short", loc: bodyLoc("token_ids"), msg: "List should have at least 1 item after validation, not 0", input: describe(raw)})
	}
	for _, id := range ids {
		if id < 0 {
			return nil, invalid("value_error", "token_ids", raw, "Value error, token_ids must not contain negative values")
		}
	}
	return ids, err
}

func (p *params) generateField(key string, raw []byte) error {
	switch key {
	case "model", "stream", "stream_options", "kv_transfer_params", "request_id", "return_token_ids", "priority":
		return p.field(key, raw)
	}
	return nil
}

// readSampling reads sampling_params, which pydantic takes for one of two things.
func (p *params) readSampling(raw []byte) error {
	wrong := func(more ...problem) error {
		first := problem{kind: "is_instance_of", loc: "body.sampling_params",
			msg: "Input should be an instance of SamplingParams", input: describe(raw), ctx: "'class': 'SamplingParams'"}
		return complaints(append([]problem{first}, more...)...)
	}
	if raw[0] != '{' {
		return wrong(problem{kind: "dict_type", loc: "body.sampling_params", msg: "Input should be a valid dictionary", input: describe(raw)})
	}
	var bad collected
	err := forEachMember(raw, func(key string, raw []byte) error {
		switch key {
		case "max_tokens", "n", "min_tokens", "ignore_eos", "stop", "stop_token_ids", "prompt_logprobs", "temperature", "top_p", "top_k", "seed":
			return bad.add(p.field(key, raw))
		case "extra_args":
			return forEachMember(raw, func(key string, raw []byte) error {
				if key == "kv_transfer_params" && p.kv == nil {
					return bad.add(p.field(key, raw))
				}
				return nil
			})
		}
		return nil
	})
	if err != nil || len(bad.problems) == 0 {
		return err
	}
	for i := range bad.problems {
		q := &bad.problems[i]
		q.loc = "body.sampling_params" + q.loc[len("body"):]
	}
	return wrong(bad.problems...)
}

// appendTokenChoice renders the token ids of one choice, and what goes with them.
func appendTokenChoice(b []byte, ln *lane, ids []int, finish string) []byte {
	b = strconv.AppendInt(append(b, `{"index":`...), int64(ln.index), 10)
	b = append(b, `,"finish_reason":`...)
	if finish == "" {
		b = append(b, `null,"stop_reason":null`...)
	} else {
		b = appendReason(append(appendJSONString(b, finish), `,"stop_reason":`...), ln.seq.reason)
	}
	b = appendInts(append(b, `,"token_ids":`...), ids)
	return append(b, `,"routed_experts":null,"sampling_mask":null,"weight_versions":null,"logprobs":null}`...)
}

// tokensBody renders the whole answer of /inference/v1/generate.
func (x *exchange) tokensBody(j *job, lanes []lane) []byte {
	b := appendJSONString(append(make([]byte, 0, 1024), `{"request_id":`...), j.id)
	b = appendJSONString(append(b, `,"model":`...), j.model)
	b = strconv.AppendInt(append(b, `,"created":`...), j.created, 10)
	b = append(b, `,"usage":`...)
	completion := 0
	for i := range lanes {
		completion += lanes[i].seq.n
	}
	b = x.appendUsage(b, j, len(j.prompts[0]), completion, true, true)
	b = append(b, `,"prompt_logprobs":null,"prompt_token_id_logprobs":null,"prompt_token_ids":`...)
	b = appendMaybeInts(b, j.prompts[0], j.returnTokenIDs)
	b = append(b, `,"mm_placeholders":null,"metrics":null,"kv_transfer_params":`...)
	if j.kvJSON == nil {
		b = append(b, "null"...)
	}
	b = append(append(b, j.kvJSON...), `,"ec_transfer_params":null,"output_mode":"tokens","choices":[`...)
	for i := range lanes {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendTokenChoice(b, &lanes[i], lanes[i].tokens, lanes[i].seq.finish)
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
	if x.strike(AfterRole, 0) {
		return
	}
	if j.loadErr != nil {
		x.core.stats.fail.Add(1)
		x.fail(internalError())
		return
	}
	lanes := j.lanes(true)
	ln := &lanes[0]
	head := appendJSONString([]byte(`data: {"request_id":`), j.id)
	for round := 1; ln.seq.finish == ""; round++ {
		if round > 1 && !x.tick(&p) {
			x.gone()
			return
		}
		id, _ := ln.step()
		x.generated(ln, id)
		b := append(append([]byte(nil), head...), `,"usage":null`...)
		if round == 1 && j.returnTokenIDs {
			b = appendInts(append(b, `,"prompt_token_ids":`...), j.prompts[0])
		}
		b = append(b, `,"output_mode":"tokens","choices":[`...)
		b = append(appendTokenChoice(b, ln, []int{id}, ln.seq.finish), "]}\n\n"...)
		if !x.write(b) {
			x.gone()
			return
		}
		if x.strike(AfterTokens, round) {
			return
		}
	}
	x.core.finished(ln.seq.finish)
	x.offer(j, ln.seq.finish)
	var b []byte
	if j.includeUsage {
		b = append(append(b, head...), `,"usage":`...)
		b = x.appendUsage(b, j, len(j.prompts[0]), ln.seq.n, true, false)
		b = append(b, `,"output_mode":"tokens","choices":[]}`+"\n\n"...)
	}
	if x.write(append(b, "data: [DONE]\n\n"...)) {
		x.completed()
	}
}
