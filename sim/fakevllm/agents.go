package fakevllm

import (
	"fmt"
	"net/http"
	"strings"
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
type collected struct{ problems []problem }

func (c *collected) add(err error) error {
	if err == nil {
		return nil
	}
	if e := asAPIError(err); e.problems != nil {
		c.problems = append(c.problems, e.problems...)
		return nil
	}
	return err
}

// readResponses reads a body of /v1/responses.
func readResponses(body []byte) (*params, error) {
	p := newAgentParams(apiResponses)
	var bad collected
	var prompt, background, store []byte
	members := 0
	err := forEachMember(body, func(key string, raw []byte) error {
		members++
		if err := validate(raw); err != nil {
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
	case !isNull(prompt):
		return nil, badRequest("prompt", nil, "prompt template is not supported")
	case truthy(background) && store != nil && !truthy(store):
		return nil, badRequest("", nil, "background can only be used when `store` is true")
	}
	if p.agent.input == nil {
		missing := problem{kind: "missing", loc: "body.input", msg: "Field required", input: fmt.Sprintf("<dict of %d items>", members+1)}
		bad.problems = append([]problem{missing}, bad.problems...)
	} else if err := bad.add(p.parseInput()); err != nil {
		return nil, err
	}
	if len(bad.problems) > 0 {
		return nil, complaints(bad.problems...)
	}
	return p, nil
}

func (p *params) responsesField(key string, raw []byte) (err error) {
	if isNull(raw) && key != "ignore_eos" && key != "priority" {
		return nil
	}
	switch key {
	case "input":
		p.agent.input = raw
	case "instructions":
		text, err := strictString(key, raw)
		p.messages = append([]message{{role: "system", text: text}}, p.messages...)
		return err
	case "model":
		p.model, err = strictString(key, raw)
	case "max_output_tokens":
		p.maxTokens, err = optionalInt(key, raw)
	case "stream":
		p.stream, err = laxBool(key, raw)
	case "store":
		p.agent.store, err = laxBool(key, raw)
	case "background":
		p.agent.background, err = laxBool(key, raw)
	case "previous_response_id":
		p.agent.previous, err = strictString(key, raw)
	case "request_id":
		p.requestID, err = strictString(key, raw)
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
func (p *params) parseInput() error {
	raw := p.agent.input
	if raw[0] == '"' {
		text, err := unquote(raw)
		p.messages = append(p.messages, message{role: "user", text: text})
		return err
	}
	if raw[0] != '[' {
		return invalid("string_type", "input.str", raw, "Input should be a valid string")
	}
	return forEachElement(raw, func(i int, raw []byte) error {
		loc := fmt.Sprintf("input.%d", i)
		if raw[0] != '{' {
			return invalid("dict_type", loc, raw, "Input should be a valid dictionary")
		}
		role, what := false, ""
		if err := forEachMember(raw, func(key string, raw []byte) (err error) {
			role = role || key == "role"
			if key == "type" && raw[0] == '"' {
				what, err = unquote(raw)
			}
			return err
		}); err != nil {
			return err
		}
		if !role { // a call, its result, reasoning: the template shows it as text
			p.agent.said(what == "reasoning" || strings.HasSuffix(what, "_call"))
			p.messages = append(p.messages, message{role: "tool", text: string(raw)})
			return nil
		}
		m, err := parseMessage(loc, raw)
		p.agent.said(m.role == "assistant")
		p.messages = append(p.messages, m)
		return err
	})
}

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

// agentTools reads "tools", whose names stand in the objects themselves.
func (p *params) agentTools(key string, raw []byte) error {
	list, err := rawList(key, raw)
	if err != nil {
		return err
	}
	p.raw.tools = raw
	for i, item := range list {
		if item[0] != '{' {
			return invalid("model_attributes_type", fmt.Sprintf("%s.%d", key, i), item, "Input should be a valid dictionary or object to extract fields from")
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
		word, _ = unquote(raw)
	case '{':
		_ = forEachMember(raw, func(key string, raw []byte) error { // was read before
			if key == "type" && raw[0] == '"' {
				word, _ = unquote(raw)
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
	_ = forEachMember(object, func(key string, raw []byte) error { // was read before
		if key == "name" && raw[0] == '"' {
			name, _ = unquote(raw)
		}
		return nil
	})
	return name
}

// admitStored refuses what needs a store of responses, which vLLM has only when it is
// told to.
func (j *job) admitStored() error {
	s := j.store
	switch {
	case s != nil:
		return s.admit(j)
	case j.agent.background:
		return &apiError{status: http.StatusBadRequest, kind: "invalid_request_error", param: "background",
			message: "This vLLM engine does not support `store=True` and therefore does not support the background mode. " +
				"To enable these features, set the environment variable `VLLM_ENABLE_RESPONSES_API_STORE=1` when launching the vLLM server."}
	case j.agent.previous != "":
		return noResponse(j.agent.previous)
	}
	return nil
}
