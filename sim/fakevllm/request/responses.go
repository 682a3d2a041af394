package request

import (
	"fmt"
	"strings"

	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
)

// readResponses reads a body of /v1/responses.
func readResponses(body []byte) (*reader, error) {
	p := newReader(true)
	p.Store = true
	var bad collected
	var prompt, background, store []byte
	members := 0
	err := pydantic.ForEachMember(body, func(key string, raw []byte) error {
		members++
		if err := pydantic.Validate(raw); err != nil {
			return err
		}
		switch key {
		case "prompt":
			prompt = raw
		case "background":
			background = raw
		case "store":
			store = raw
		}
		return bad.add(p.responsesField(key, raw))
	})
	switch {
	case err != nil:
		return nil, err
	case !pydantic.IsNull(prompt):
		return nil, pydantic.BadRequest("prompt", nil, "prompt template is not supported")
	case pydantic.Truthy(background) && store != nil && !pydantic.Truthy(store):
		return nil, pydantic.BadRequest("", nil, "background can only be used when `store` is true")
	}
	if p.input == nil {
		missing := pydantic.Problem{Kind: "missing", Loc: "body.input", Msg: "Field required", Input: fmt.Sprintf("<dict of %d items>", members+1)}
		bad.problems = append([]pydantic.Problem{missing}, bad.problems...)
	} else if err := bad.add(p.parseInput()); err != nil {
		return nil, err
	}
	if len(bad.problems) > 0 {
		return nil, pydantic.Complaints(bad.problems...)
	}
	return p, nil
}

func (p *reader) responsesField(key string, raw []byte) (err error) {
	if pydantic.IsNull(raw) && key != "ignore_eos" && key != "priority" {
		return nil
	}
	switch key {
	case "input":
		p.input = raw
	case "instructions":
		text, err := pydantic.String(key, raw)
		p.Messages = append([]Message{{Role: "system", Text: text}}, p.Messages...)
		return err
	case "model":
		p.Model, err = pydantic.String(key, raw)
	case "max_output_tokens":
		p.MaxTokens, err = optionalInt(key, raw)
	case "stream":
		p.Stream, err = pydantic.Bool(key, raw)
	case "store":
		p.Store, err = pydantic.Bool(key, raw)
	case "background":
		p.Background, err = pydantic.Bool(key, raw)
	case "previous_response_id":
		p.Previous, err = pydantic.String(key, raw)
	case "request_id":
		p.RequestID, err = pydantic.String(key, raw)
	case "tools":
		err = p.agentTools(key, raw)
	case "tool_choice":
		p.agentChoice(raw, "required", "function")
	case "min_tokens", "stop_token_ids", "presence_penalty", "frequency_penalty", "echo", "n", "logprobs":
		// no fields of this API
	case "ignore_eos", "stop", "kv_transfer_params", "temperature", "top_p", "top_k", "seed", "priority", "vllm_xargs", "cache_salt":
		err = p.field(key, raw)
	}
	return err
}

// parseInput reads "input": a text, or a list of what was said so far.
func (p *reader) parseInput() error {
	raw := p.input
	if raw[0] == '"' {
		text, err := pydantic.Unquote(raw)
		p.Messages = append(p.Messages, Message{Role: "user", Text: text})
		return err
	}
	if raw[0] != '[' {
		return pydantic.Invalid("string_type", "input.str", raw, "Input should be a valid string")
	}
	return pydantic.ForEachElement(raw, func(i int, raw []byte) error {
		loc := fmt.Sprintf("input.%d", i)
		if raw[0] != '{' {
			return pydantic.Invalid("dict_type", loc, raw, "Input should be a valid dictionary")
		}
		role, what := false, ""
		if err := pydantic.ForEachMember(raw, func(key string, raw []byte) (err error) {
			role = role || key == "role"
			if key == "type" && raw[0] == '"' {
				what, err = pydantic.Unquote(raw)
			}
			return err
		}); err != nil {
			return err
		}
		if !role { // a call, its result, reasoning: the template shows it as text
			p.said(what == "reasoning" || strings.HasSuffix(what, "_call"))
			p.Messages = append(p.Messages, Message{Role: "tool", Text: string(raw)})
			return nil
		}
		m, err := parseMessage(loc, raw)
		p.said(m.Role == "assistant")
		p.Messages = append(p.Messages, m)
		return err
	})
}
