package fakevllm

import (
	"fmt"
)

// readMessages reads a body of /v1/messages.
func readMessages(body []byte) (*params, error) {
	p := newAgentParams(apiMessages)
	var bad collected
	there := map[string]bool{}
	err := forEachMember(body, func(key string, raw []byte) error {
		there[key] = true
		if err := validate(raw); err != nil {
			return err
		}
		return bad.add(p.messagesField(key, raw))
	})
	if err != nil {
		return nil, err
	}
	for _, key := range []string{"model", "messages", "max_tokens"} {
		if !there[key] {
			bad.problems = append(bad.problems, problem{kind: "missing", loc: bodyLoc(key), msg: "Field required", input: describe(body)})
		}
	}
	if p.raw.messages != nil && p.raw.messages[0] == '[' {
		if err := bad.add(p.parseBlocks()); err != nil {
			return nil, err
		}
	}
	if len(bad.problems) > 0 {
		return nil, complaints(bad.problems...)
	}
	return p, nil
}

func (p *params) messagesField(key string, raw []byte) (err error) {
	switch key {
	case "model":
		p.model, err = strictString(key, raw)
		return err
	case "messages":
		if p.raw.messages = raw; raw[0] != '[' {
			return invalid("list_type", key, raw, "Input should be a valid list")
		}
		return nil
	case "max_tokens":
		p.maxTokens, err = optionalInt(key, raw)
		if err == nil && *p.maxTokens <= 0 {
			err = complaints(problem{kind: "value_error", loc: bodyLoc(key), msg: "Value error, max_tokens must be positive", input: describe(raw)})
		}
		return err
	}
	if isNull(raw) {
		return nil
	}
	switch key {
	case "system":
		p.agent.system = raw
	case "stream":
		p.stream, err = laxBool(key, raw)
	case "stop_sequences":
		p.sampling.Stop, err = stringList(key, raw)
		p.agent.stopSequences = len(p.sampling.Stop) > 0
	case "tools":
		err = p.agentTools(key, raw)
	case "tool_choice":
		p.agentChoice(raw, "any", "tool")
	case "temperature", "top_p", "top_k", "kv_transfer_params":
		err = p.field(key, raw)
	}
	return err
}

// parseBlocks reads "system" and "messages" of /v1/messages.
func (p *params) parseBlocks() error {
	if raw := p.agent.system; raw != nil {
		text, err := blocksText("system", raw)
		if err != nil {
			return err
		}
		p.messages = append(p.messages, message{role: "system", text: text})
	}
	return forEachElement(p.raw.messages, func(i int, raw []byte) error {
		loc := fmt.Sprintf("messages.%d", i)
		if raw[0] != '{' {
			return invalid("model_attributes_type", loc, raw, "Input should be a valid dictionary or object to extract fields from")
		}
		var role, content []byte
		if err := forEachMember(raw, func(key string, raw []byte) error {
			switch key {
			case "role":
				role = raw
			case "content":
				content = raw
			}
			return nil
		}); err != nil {
			return err
		}
		if role == nil || content == nil {
			return invalid("missing", loc, raw, "Field required")
		}
		if err := oneOf(loc+".role", role, "user", "assistant", "system"); err != nil {
			return err
		}
		m := message{}
		m.role, _ = unquote(role)
		p.agent.said(m.role == "assistant")
		var err error
		m.text, err = blocksText(loc+".content", content)
		p.messages = append(p.messages, m)
		return err
	})
}

// blocksText is the text of a content: a string, or blocks, of which those without
// text are shown as they are.
func blocksText(loc string, raw []byte) (string, error) {
	if raw[0] == '"' {
		return unquote(raw)
	}
	if raw[0] != '[' {
		return "", invalid("string_type", loc+".str", raw, "Input should be a valid string")
	}
	text := ""
	err := forEachElement(raw, func(_ int, raw []byte) error {
		said := string(raw)
		if raw[0] == '{' {
			if err := forEachMember(raw, func(key string, raw []byte) (err error) {
				if key == "text" && raw[0] == '"' {
					said, err = unquote(raw)
				}
				return err
			}); err != nil {
				return err
			}
		}
		if text != "" {
			text += "\n"
		}
		text += said
		return nil
	})
	return text, err
}
