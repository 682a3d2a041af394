package fakevllm

import (
	"fmt"

	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
)

// api is which of the generating routes a request came in on.
type api uint8

const (
	apiCompletions api = iota
	apiChat
	apiResponses // /v1/responses
	apiMessages  // /v1/messages
	apiGenerate  // /inference/v1/generate
)

// apiOf is the API of a generating route.
func apiOf(path string) (a api, ok bool) {
	switch path {
	case pathCompletions:
		return apiCompletions, true
	case pathChat:
		return apiChat, true
	case pathResponses:
		return apiResponses, true
	case pathMessages:
		return apiMessages, true
	case pathGenerate:
		return apiGenerate, true
	}
	return 0, false
}

// parse reads a body as strictly as vLLM does. What vLLM makes a chat of is one here,
// too: the same conversation has the same prompt on all of these routes.
func (a api) parse(body []byte) (*params, error) {
	var p *params
	var err error
	switch a {
	case apiCompletions, apiChat:
		p, err = readParams(body, a == apiChat)
	case apiResponses:
		p, err = readResponses(body)
	case apiMessages:
		p, err = readMessages(body)
	case apiGenerate:
		p, err = readGenerate(body)
	}
	if err != nil {
		return nil, judge(body, err)
	}
	p.api = a
	return p, nil
}

// agentFields are those of the two APIs that no chat has.
type agentFields struct {
	store, background bool
	previous          string // previous_response_id
	input, system     []byte
	stopSequences     bool // there are some
	turn              int  // how many answers the conversation has
	answering         bool // what was read last is part of an answer
}

// said takes note of one more message or item of the conversation: an answer is a run
// of those that the model has made.
func (a *agentFields) said(byModel bool) {
	if byModel && !a.answering {
		a.turn++
	}
	a.answering = byModel
}

func newAgentParams(a api) *params {
	p := &params{api: a, chat: true, n: 1, addGenerate: true, temperature: 1, topP: 1, repetitionPenalty: 1}
	p.agent.store = a == apiResponses
	return p
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

// agentTools reads "tools", whose names stand in the objects themselves.
func (p *params) agentTools(key string, raw []byte) error {
	list, err := pydantic.RawList(key, raw)
	if err != nil {
		return err
	}
	p.raw.tools = raw
	for i, item := range list {
		if item[0] != '{' {
			return pydantic.Invalid("model_attributes_type", fmt.Sprintf("%s.%d", key, i), item, "Input should be a valid dictionary or object to extract fields from")
		}
		p.tools = append(p.tools, tool{name: nameIn(item)})
	}
	return nil
}

// agentChoice reads "tool_choice": a word, or an object whose type is one; any and one
// are the words for a call of any tool and of a named one.
func (p *params) agentChoice(raw []byte, anyTool, oneTool string) {
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
		p.toolChoice = "required"
	case oneTool:
		p.toolChoice, p.toolName = "function", name
	default:
		p.toolChoice = word
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
