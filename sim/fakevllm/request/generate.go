package request

import "github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"

// readGenerate reads a body of /inference/v1/generate.
func readGenerate(body []byte) (*reader, error) {
	p := newReader(false)
	var bad collected
	var ids, sampling []byte
	err := pydantic.ForEachMember(body, func(key string, raw []byte) error {
		if err := pydantic.Validate(raw); err != nil {
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
			bad.problems = append(bad.problems, pydantic.Problem{Kind: "missing", Loc: pydantic.BodyLoc(key), Msg: "Field required", Input: pydantic.Describe(body)})
		}
	}
	if ids != nil {
		list, err := tokenIDs(ids)
		if err := bad.add(err); err != nil {
			return nil, err
		}
		p.Prompts, p.PromptText = [][]int{list}, []string{""}
	}
	if sampling != nil {
		if err := bad.add(p.readSampling(sampling)); err != nil {
			return nil, err
		}
	}
	if len(bad.problems) > 0 {
		return nil, pydantic.Complaints(bad.problems...)
	}
	return p, nil
}

func tokenIDs(raw []byte) ([]int, error) {
	if raw[0] != '[' {
		return nil, pydantic.Invalid("list_type", "token_ids", raw, "Input should be a valid list")
	}
	ids, err := pydantic.Ints("token_ids", raw)
	if err == nil && len(ids) == 0 {
		err = pydantic.Complaints(pydantic.Problem{Kind: "too_short", Loc: pydantic.BodyLoc("token_ids"), Msg: "List should have at least 1 item after validation, not 0", Input: pydantic.Describe(raw)})
	}
	for _, id := range ids {
		if id < 0 {
			return nil, pydantic.Invalid("value_error", "token_ids", raw, "Value error, token_ids must not contain negative values")
		}
	}
	return ids, err
}

func (p *reader) generateField(key string, raw []byte) error {
	switch key {
	case "model", "stream", "stream_options", "kv_transfer_params", "request_id", "return_token_ids", "priority":
		return p.field(key, raw)
	}
	return nil
}

// readSampling reads sampling_params, which pydantic takes for one of two things.
func (p *reader) readSampling(raw []byte) error {
	wrong := func(more ...pydantic.Problem) error {
		first := pydantic.Problem{Kind: "is_instance_of", Loc: "body.sampling_params",
			Msg: "Input should be an instance of SamplingParams", Input: pydantic.Describe(raw), Ctx: "'class': 'SamplingParams'"}
		return pydantic.Complaints(append([]pydantic.Problem{first}, more...)...)
	}
	if raw[0] != '{' {
		return wrong(pydantic.Problem{Kind: "dict_type", Loc: "body.sampling_params", Msg: "Input should be a valid dictionary", Input: pydantic.Describe(raw)})
	}
	var bad collected
	err := pydantic.ForEachMember(raw, func(key string, raw []byte) error {
		switch key {
		case "max_tokens", "n", "min_tokens", "ignore_eos", "stop", "stop_token_ids", "prompt_logprobs", "temperature", "top_p", "top_k", "seed":
			return bad.add(p.field(key, raw))
		case "extra_args":
			return pydantic.ForEachMember(raw, func(key string, raw []byte) error {
				if key == "kv_transfer_params" && p.KV == nil {
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
		q.Loc = "body.sampling_params" + q.Loc[len("body"):]
	}
	return wrong(bad.problems...)
}
