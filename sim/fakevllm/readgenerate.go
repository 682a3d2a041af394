package fakevllm

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
