package request

import (
	"fmt"

	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
)

// said takes note of one more message or item of the conversation: an answer is a run
// of those that the model has made.
func (p *reader) said(byModel bool) {
	if byModel && !p.answering {
		p.Turn++
	}
	p.answering = byModel
}

// collected gathers pydantic's complaints; the first other error ends it.
type collected struct{ problems []pydantic.Problem }

func (c *collected) add(err error) error {
	if err == nil {
		return nil
	}
	if e := pydantic.AsError(err); e.Problems != nil {
		c.problems = append(c.problems, e.Problems...)
		return nil
	}
	return err
}

// agentTools reads "tools", whose names are in the objects themselves.
func (p *reader) agentTools(key string, raw []byte) error {
	list, err := pydantic.RawList(key, raw)
	if err != nil {
		return err
	}
	p.rawTools = raw
	for i, item := range list {
		if item[0] != '{' {
			return pydantic.Invalid("model_attributes_type", fmt.Sprintf("%s.%d", key, i), item, "Input should be a valid dictionary or object to extract fields from")
		}
		p.Tools = append(p.Tools, Tool{Name: nameIn(item)})
	}
	return nil
}

// agentChoice reads "tool_choice": a word, or an object whose type is one; any and one
// are the words for a call of any tool and of a named one.
func (p *reader) agentChoice(raw []byte, anyTool, oneTool string) {
	word, name := "", ""
	switch raw[0] {
	case '"':
		word, _ = pydantic.Unquote(raw)
	case '{':
		_ = pydantic.ForEachMember(raw, func(key string, raw []byte) error { // was read before
			if key == "type" && raw[0] == '"' {
				word, _ = pydantic.Unquote(raw)
			}
			return nil
		})
		name = nameIn(raw)
	}
	switch word {
	case anyTool:
		p.ToolChoice = "required"
	case oneTool:
		p.ToolChoice, p.ToolName = "function", name
	default:
		p.ToolChoice = word
	}
}

func nameIn(object []byte) (name string) {
	_ = pydantic.ForEachMember(object, func(key string, raw []byte) error { // was read before
		if key == "name" && raw[0] == '"' {
			name, _ = pydantic.Unquote(raw)
		}
		return nil
	})
	return name
}
