package fakevllm

import (
	"fmt"
	"strings"
)

// message is one chat message as far as the simulated template reads it.
type message struct {
	role string
	text string
}

// tool is one entry of "tools".
type tool struct {
	name string
}

// parseMessages reads "messages" of /v1/chat/completions. As in vLLM a role
// is any string: which roles a model knows is its template's business, and
// the simulated template knows all.
func (p *params) parseMessages(body []byte) error {
	raw := p.raw.messages
	if raw == nil {
		return invalid("missing", "messages", body, "Field required")
	}
	if isNull(raw) {
		return badRequest("", nil, "'NoneType' object is not iterable")
	}
	if raw[0] != '[' {
		if err := validate(raw); err != nil {
			return err
		}
		return invalid("list_type", "messages", raw, "Input should be a valid list")
	}
	err := forEachElement(raw, func(i int, raw []byte) error {
		loc := fmt.Sprintf("messages.%d", i)
		if raw[0] != '{' {
			if err := validate(raw); err != nil {
				return err
			}
			return invalid("dict_type", loc, raw, "Input should be a valid dictionary")
		}
		m, err := parseMessage(loc, raw)
		p.messages = append(p.messages, m)
		return err
	})
	if err != nil {
		return err
	}
	if len(p.messages) == 0 {
		return badRequest("", nil, "Cannot apply chat template to an empty conversation. Provide at least one message.")
	}
	return nil
}

func parseMessage(loc string, raw []byte) (message, error) {
	var role, content, calls []byte
	err := forEachMember(raw, func(key string, raw []byte) error {
		switch key {
		case "role":
			role = raw
		case "content":
			content = raw // validated below
			return nil
		case "tool_calls":
			calls = raw
		}
		return validate(raw)
	})
	if err != nil {
		return message{}, err
	}
	if role == nil {
		return message{}, invalid("missing", loc+".role", raw, "Field required")
	}
	m := message{}
	if m.role, err = strictString(loc+".role", role); err != nil {
		return m, err
	}
	if m.text, err = contentText(loc+".content", content); err != nil {
		return m, err
	}
	if !isNull(calls) {
		// The template shows calls as text, so they count as prompt.
		m.text += string(calls)
	}
	return m, nil
}

// contentText is the text of a message: a string, or parts joined by newlines.
func contentText(loc string, raw []byte) (string, error) {
	if isNull(raw) {
		return "", nil
	}
	switch raw[0] {
	case '"':
		return unquote(raw)
	case '[':
	default:
		if err := validate(raw); err != nil {
			return "", err
		}
		return "", invalid("string_type", loc+".str", raw, "Input should be a valid string")
	}
	var parts []string
	err := forEachElement(raw, func(i int, raw []byte) error {
		text, err := partText(fmt.Sprintf("%s.%d", loc, i), raw)
		parts = append(parts, text)
		return err
	})
	return strings.Join(parts, "\n"), err
}

func partText(loc string, raw []byte) (string, error) {
	if raw[0] == '"' {
		return unquote(raw) // vLLM takes bare strings as text parts
	}
	if raw[0] != '{' {
		if err := validate(raw); err != nil {
			return "", err
		}
		return "", invalid("dict_type", loc, raw, "Input should be a valid dictionary")
	}
	var kind, text []byte
	if err := forEachMember(raw, func(key string, raw []byte) error {
		switch key {
		case "type":
			kind = raw
		case "text", "refusal":
			text = raw
		}
		return validate(raw)
	}); err != nil {
		return "", err
	}
	if kind == nil && text == nil {
		return "", badRequest("", nil, "Missing 'type' field in multimodal part.")
	}
	name := "text"
	if kind != nil {
		var err error
		if name, err = strictString(loc+".type", kind); err != nil {
			return "", err
		}
	}
	switch name {
	case "text", "input_text", "output_text", "refusal", "thinking":
		if isNull(text) {
			return "", invalid("missing", loc+".text", raw, "Field required")
		}
		return strictString(loc+".text", text)
	case "image_url", "image_embeds", "input_audio", "audio_url", "video_url", "file":
		return "", badRequest("", nil, "The served model is not a multimodal model: it takes no '%s' parts.", name)
	}
	return "", badRequest("", nil, "Unknown part type: %s", name)
}

// parseTools checks "tools" and "tool_choice" as vLLM's check_tool_usage does.
func (p *params) parseTools() error {
	if !p.chat {
		return nil
	}
	if raw := p.raw.tools; !isNull(raw) {
		list, err := rawList("tools", raw)
		if err != nil {
			return err
		}
		if len(list) == 0 {
			return badRequest("tools", nil, "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely.")
		}
		for i, item := range list {
			t, err := parseTool(fmt.Sprintf("tools.%d", i), item)
			if err != nil {
				return err
			}
			p.tools = append(p.tools, t)
		}
	}
	raw := p.raw.toolChoice
	switch {
	case raw == nil && p.tools != nil:
		p.toolChoice = "auto"
		return nil
	case isNull(raw):
		return nil
	case string(raw) == `"none"`:
		p.toolChoice = "none"
		return nil
	case p.tools == nil:
		return badRequest("tool_choice", nil, "When using `tool_choice`, `tools` must be set.")
	case string(raw) == `"auto"`:
		p.toolChoice = "auto"
		return nil
	case string(raw) == `"required"`:
		p.toolChoice = "required"
		return nil
	case raw[0] != '{':
		return badRequest("tool_choice", nil, "Invalid value for `tool_choice`: %s! Only named tools, \"none\", \"auto\" or \"required\" are supported.", describe(raw))
	}
	t, err := chosenTool(raw)
	if err != nil {
		return err
	}
	for _, known := range p.tools {
		if known.name == t.name {
			p.toolChoice, p.toolName = "function", t.name
			return nil
		}
	}
	return badRequest("tool_choice", nil, "The tool specified in `tool_choice` does not match any of the specified `tools`")
}

// chosenTool reads a named tool_choice, as vLLM does before pydantic sees it.
func chosenTool(raw []byte) (tool, error) {
	const usage = "Correct usage: `{\"type\": \"function\", \"function\": {\"name\": \"my_function\"}}`"
	member := func(object []byte, name string) (found []byte) {
		_ = forEachMember(object, func(key string, raw []byte) error { // was read before
			if key == name {
				found = raw
			}
			return nil
		})
		return found
	}
	function := member(raw, "function")
	if len(function) == 0 || function[0] != '{' {
		return tool{}, badRequest("tool_choice.function", nil, "Invalid value for `function`: `%s` in `tool_choice`! %s", describe(function), usage)
	}
	name := member(function, "name")
	if name == nil {
		return tool{}, badRequest("tool_choice.function.name", nil, "Expected field `name` in `function` in `tool_choice`! %s", usage)
	}
	text, err := strictString("", name)
	if err != nil || text == "" {
		return tool{}, badRequest("tool_choice.function.name", nil, "Invalid `name` in `function`: `%s` in `tool_choice`! %s", describe(name), usage)
	}
	return tool{name: text}, nil
}

func parseTool(loc string, raw []byte) (tool, error) {
	if raw[0] != '{' {
		return tool{}, invalid("model_attributes_type", loc, raw, "Input should be a valid dictionary or object to extract fields from")
	}
	var kind, function, name []byte
	err := forEachMember(raw, func(key string, raw []byte) error {
		switch key {
		case "type":
			kind = raw
		case "function":
			function = raw
		}
		return nil
	})
	switch {
	case err != nil:
		return tool{}, err
	case kind != nil && string(kind) != `"function"`:
		return tool{}, invalid("literal_error", loc+".type", raw, "Input should be one of function")
	case function == nil:
		return tool{}, invalid("missing", loc+".function", raw, "Field required")
	case function[0] != '{':
		return tool{}, invalid("model_attributes_type", loc+".function", function, "Input should be a valid dictionary or object to extract fields from")
	}
	if err := forEachMember(function, func(key string, raw []byte) error {
		switch key {
		case "name":
			name = raw
		case "parameters":
			if !isNull(raw) {
				return checkObject(loc+".function.parameters", raw)
			}
		}
		return nil
	}); err != nil {
		return tool{}, err
	}
	if name == nil {
		return tool{}, invalid("missing", loc+".function.name", function, "Field required")
	}
	s, err := strictString(loc+".function.name", name)
	return tool{name: s}, err
}

// render applies the simulated chat template. A final message that is to be
// continued is left open, so that its text and the tokens generated after the
// opening of an assistant's message are the same ids.
func (p *params) render() error {
	if p.continueMsg && p.addGenerate {
		return badRequest("", nil, "continue_final_message and add_generation_prompt are not compatible. Use continue_final_message when you want the model to continue the final message, "+
			"and add_generation_prompt when you want to add a header that will prompt it to start a new assistant message instead.")
	}
	size := 2
	for _, m := range p.messages {
		size += len(m.text)/4 + 4
	}
	ids := make([]int, 0, size)
	if p.tokenize == nil {
		p.tokenize = appendTokens
	}
	if len(p.tools) > 0 && p.toolChoice != "none" {
		ids = append(ids, tokenTools)
		ids = p.tokenize(ids, string(p.raw.tools))
		ids = append(ids, tokenEnd)
	}
	for i, m := range p.messages {
		ids = append(ids, tokenStart, roleToken(m.role))
		ids = p.tokenize(ids, m.text)
		if i < len(p.messages)-1 || !p.continueMsg {
			ids = append(ids, tokenEnd)
		}
	}
	if p.addGenerate {
		ids = append(ids, tokenStart, roleToken("assistant"))
	}
	p.prompts = [][]int{ids}
	return nil
}

func roleToken(role string) int { return pieceID(role) }

// wantsCall tells that the answer must be a tool call.
func (p *params) wantsCall() bool { return p.toolChoice == "required" || p.toolChoice == "function" }
