package request

import (
	"fmt"

	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
)

// readMessages reads a body of /v1/messages.
func readMessages(body []byte) (*reader, error) {
	p := newReader(true)
	var bad collected
	there := map[string]bool{}
	err := pydantic.ForEachMember(body, func(key string, raw []byte) error {
		there[key] = true
		if err := pydantic.Validate(raw); err != nil {
			return err
		}
		return bad.add(p.messagesField(key, raw))
	})
	if err != nil {
		return nil, err
	}
	for _, key := range []string{"model", "messages", "max_tokens"} {
		if !there[key] {
			bad.problems = append(bad.problems, pydantic.Problem{Kind: "missing", Loc: pydantic.BodyLoc(key), Msg: "Field required", Input: pydantic.Describe(body)})
		}
	}
	if p.raw.messages != nil && p.raw.messages[0] == '[' {
		if err := bad.add(p.parseBlocks()); err != nil {
			return nil, err
		}
	}
	if len(bad.problems) > 0 {
		return nil, pydantic.Complaints(bad.problems...)
	}
	return p, nil
}

func (p *reader) messagesField(key string, raw []byte) (err error) {
	switch key {
	case "model":
		p.Model, err = pydantic.String(key, raw)
		return err
	case "messages":
		if p.raw.messages = raw; raw[0] != '[' {
			return pydantic.Invalid("list_type", key, raw, "Input should be a valid list")
		}
		return nil
	case "max_tokens":
		p.MaxTokens, err = optionalInt(key, raw)
		if err == nil && *p.MaxTokens <= 0 {
			err = pydantic.Complaints(pydantic.Problem{Kind: "value_error", Loc: pydantic.BodyLoc(key), Msg: "Value error, max_tokens must be positive", Input: pydantic.Describe(raw)})
		}
		return err
	}
	if pydantic.IsNull(raw) {
		return nil
	}
	switch key {
	case "system":
		p.system = raw
	case "stream":
		p.Stream, err = pydantic.Bool(key, raw)
	case "stop_sequences":
		p.Sampling.Stop, err = pydantic.Strings(key, raw)
		p.StopSequences = len(p.Sampling.Stop) > 0
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
func (p *reader) parseBlocks() error {
	if raw := p.system; raw != nil {
		text, err := blocksText("system", raw)
		if err != nil {
			return err
		}
		p.Messages = append(p.Messages, Message{Role: "system", Text: text})
	}
	return pydantic.ForEachElement(p.raw.messages, func(i int, raw []byte) error {
		loc := fmt.Sprintf("messages.%d", i)
		if raw[0] != '{' {
			return pydantic.Invalid("model_attributes_type", loc, raw, "Input should be a valid dictionary or object to extract fields from")
		}
		var role, content []byte
		if err := pydantic.ForEachMember(raw, func(key string, raw []byte) error {
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
			return pydantic.Invalid("missing", loc, raw, "Field required")
		}
		if err := oneOf(loc+".role", role, "user", "assistant", "system"); err != nil {
			return err
		}
		m := Message{}
		m.Role, _ = pydantic.Unquote(role)
		p.said(m.Role == "assistant")
		var err error
		m.Text, err = blocksText(loc+".content", content)
		p.Messages = append(p.Messages, m)
		return err
	})
}

// blocksText is the text of a content: a string, or blocks, of which those without
// text are shown as they are.
func blocksText(loc string, raw []byte) (string, error) {
	if raw[0] == '"' {
		return pydantic.Unquote(raw)
	}
	if raw[0] != '[' {
		return "", pydantic.Invalid("string_type", loc+".str", raw, "Input should be a valid string")
	}
	text := ""
	err := pydantic.ForEachElement(raw, func(_ int, raw []byte) error {
		said := string(raw)
		if raw[0] == '{' {
			if err := pydantic.ForEachMember(raw, func(key string, raw []byte) (err error) {
				if key == "text" && raw[0] == '"' {
					said, err = pydantic.Unquote(raw)
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
