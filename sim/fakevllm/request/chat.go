package request

import (
	"fmt"
	"strings"

	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
)

// Message is one chat message as far as the simulated template reads it.
type Message struct {
	Role string
	Text string
}

// Tool is one entry of "tools".
type Tool struct {
	Name string
}

// parseMessages reads "messages" of /v1/chat/completions. As in vLLM a role
// is any string: which roles a model knows is its template's business, and
// the simulated template knows all.
func (p *reader) parseMessages(body []byte) error {
	raw := p.raw.messages
	if raw == nil {
		return pydantic.Invalid("missing", "messages", body, "Field required")
	}
	if pydantic.IsNull(raw) {
		return pydantic.BadRequest("", nil, "'NoneType' object is not iterable")
	}
	if raw[0] != '[' {
		if err := pydantic.Validate(raw); err != nil {
			return err
		}
		return pydantic.Invalid("list_type", "messages", raw, "Input should be a valid list")
	}
	err := pydantic.ForEachElement(raw, func(i int, raw []byte) error {
		loc := fmt.Sprintf("messages.%d", i)
		if raw[0] != '{' {
			if err := pydantic.Validate(raw); err != nil {
				return err
			}
			return pydantic.Invalid("dict_type", loc, raw, "Input should be a valid dictionary")
		}
		m, err := parseMessage(loc, raw)
		p.Messages = append(p.Messages, m)
		return err
	})
	if err != nil {
		return err
	}
	if len(p.Messages) == 0 {
		return pydantic.BadRequest("", nil, "Cannot apply chat template to an empty conversation. Provide at least one message.")
	}
	return nil
}

func parseMessage(loc string, raw []byte) (Message, error) {
	var role, content, calls []byte
	err := pydantic.ForEachMember(raw, func(key string, raw []byte) error {
		switch key {
		case "role":
			role = raw
		case "content":
			content = raw // validated below
			return nil
		case "tool_calls":
			calls = raw
		}
		return pydantic.Validate(raw)
	})
	if err != nil {
		return Message{}, err
	}
	if role == nil {
		return Message{}, pydantic.Invalid("missing", loc+".role", raw, "Field required")
	}
	m := Message{}
	if m.Role, err = pydantic.String(loc+".role", role); err != nil {
		return m, err
	}
	if m.Text, err = contentText(loc+".content", content); err != nil {
		return m, err
	}
	if !pydantic.IsNull(calls) {
		// The template shows calls as text, so they count as prompt.
		m.Text += string(calls)
	}
	return m, nil
}

// contentText is the text of a message: a string, or parts joined by newlines.
func contentText(loc string, raw []byte) (string, error) {
	if pydantic.IsNull(raw) {
		return "", nil
	}
	switch raw[0] {
	case '"':
		return pydantic.Unquote(raw)
	case '[':
	default:
		if err := pydantic.Validate(raw); err != nil {
			return "", err
		}
		return "", pydantic.Invalid("string_type", loc+".str", raw, "Input should be a valid string")
	}
	var parts []string
	err := pydantic.ForEachElement(raw, func(i int, raw []byte) error {
		text, err := partText(fmt.Sprintf("%s.%d", loc, i), raw)
		parts = append(parts, text)
		return err
	})
	return strings.Join(parts, "\n"), err
}

func partText(loc string, raw []byte) (string, error) {
	if raw[0] == '"' {
		return pydantic.Unquote(raw) // vLLM takes bare strings as text parts
	}
	if raw[0] != '{' {
		if err := pydantic.Validate(raw); err != nil {
			return "", err
		}
		return "", pydantic.Invalid("dict_type", loc, raw, "Input should be a valid dictionary")
	}
	var kind, text []byte
	if err := pydantic.ForEachMember(raw, func(key string, raw []byte) error {
		switch key {
		case "type":
			kind = raw
		case "text", "refusal":
			text = raw
		}
		return pydantic.Validate(raw)
	}); err != nil {
		return "", err
	}
	if kind == nil && text == nil {
		return "", pydantic.BadRequest("", nil, "Missing 'type' field in multimodal part.")
	}
	name := "text"
	if kind != nil {
		var err error
		if name, err = pydantic.String(loc+".type", kind); err != nil {
			return "", err
		}
	}
	switch name {
	case "text", "input_text", "output_text", "refusal", "thinking":
		if pydantic.IsNull(text) {
			return "", pydantic.Invalid("missing", loc+".text", raw, "Field required")
		}
		return pydantic.String(loc+".text", text)
	case "image_url", "image_embeds", "input_audio", "audio_url", "video_url", "file":
		return "", pydantic.BadRequest("", nil, "The served model is not a multimodal model: it takes no '%s' parts.", name)
	}
	return "", pydantic.BadRequest("", nil, "Unknown part type: %s", name)
}

// parseTools checks "tools" and "tool_choice" as vLLM's check_tool_usage does.
func (p *reader) parseTools() error {
	if !p.Chat {
		return nil
	}
	if raw := p.rawTools; !pydantic.IsNull(raw) {
		list, err := pydantic.RawList("tools", raw)
		if err != nil {
			return err
		}
		if len(list) == 0 {
			return pydantic.BadRequest("tools", nil, "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely.")
		}
		for i, item := range list {
			t, err := parseTool(fmt.Sprintf("tools.%d", i), item)
			if err != nil {
				return err
			}
			p.Tools = append(p.Tools, t)
		}
	}
	raw := p.raw.toolChoice
	switch {
	case raw == nil && p.Tools != nil:
		p.ToolChoice = "auto"
		return nil
	case pydantic.IsNull(raw):
		return nil
	case string(raw) == `"none"`:
		p.ToolChoice = "none"
		return nil
	case p.Tools == nil:
		return pydantic.BadRequest("tool_choice", nil, "When using `tool_choice`, `tools` must be set.")
	case string(raw) == `"auto"`:
		p.ToolChoice = "auto"
		return nil
	case string(raw) == `"required"`:
		p.ToolChoice = "required"
		return nil
	case raw[0] != '{':
		return pydantic.BadRequest("tool_choice", nil, "Invalid value for `tool_choice`: %s! Only named tools, \"none\", \"auto\" or \"required\" are supported.", pydantic.Describe(raw))
	}
	t, err := chosenTool(raw)
	if err != nil {
		return err
	}
	for _, known := range p.Tools {
		if known.Name == t.Name {
			p.ToolChoice, p.ToolName = "function", t.Name
			return nil
		}
	}
	return pydantic.BadRequest("tool_choice", nil, "The tool specified in `tool_choice` does not match any of the specified `tools`")
}

// chosenTool reads a named tool_choice, as vLLM does before pydantic sees it.
func chosenTool(raw []byte) (Tool, error) {
	const usage = "Correct usage: `{\"type\": \"function\", \"function\": {\"name\": \"my_function\"}}`"
	member := func(object []byte, name string) (found []byte) {
		_ = pydantic.ForEachMember(object, func(key string, raw []byte) error { // was read before
			if key == name {
				found = raw
			}
			return nil
		})
		return found
	}
	function := member(raw, "function")
	if len(function) == 0 || function[0] != '{' {
		return Tool{}, pydantic.BadRequest("tool_choice.function", nil, "Invalid value for `function`: `%s` in `tool_choice`! %s", pydantic.Describe(function), usage)
	}
	name := member(function, "name")
	if name == nil {
		return Tool{}, pydantic.BadRequest("tool_choice.function.name", nil, "Expected field `name` in `function` in `tool_choice`! %s", usage)
	}
	text, err := pydantic.String("", name)
	if err != nil || text == "" {
		return Tool{}, pydantic.BadRequest("tool_choice.function.name", nil, "Invalid `name` in `function`: `%s` in `tool_choice`! %s", pydantic.Describe(name), usage)
	}
	return Tool{Name: text}, nil
}

func parseTool(loc string, raw []byte) (Tool, error) {
	if raw[0] != '{' {
		return Tool{}, pydantic.Invalid("model_attributes_type", loc, raw, "Input should be a valid dictionary or object to extract fields from")
	}
	var kind, function, name []byte
	err := pydantic.ForEachMember(raw, func(key string, raw []byte) error {
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
		return Tool{}, err
	case kind != nil && string(kind) != `"function"`:
		return Tool{}, pydantic.Invalid("literal_error", loc+".type", raw, "Input should be one of function")
	case function == nil:
		return Tool{}, pydantic.Invalid("missing", loc+".function", raw, "Field required")
	case function[0] != '{':
		return Tool{}, pydantic.Invalid("model_attributes_type", loc+".function", function, "Input should be a valid dictionary or object to extract fields from")
	}
	if err := pydantic.ForEachMember(function, func(key string, raw []byte) error {
		switch key {
		case "name":
			name = raw
		case "parameters":
			if !pydantic.IsNull(raw) {
				return pydantic.CheckObject(loc+".function.parameters", raw)
			}
		}
		return nil
	}); err != nil {
		return Tool{}, err
	}
	if name == nil {
		return Tool{}, pydantic.Invalid("missing", loc+".function.name", function, "Field required")
	}
	s, err := pydantic.String(loc+".function.name", name)
	return Tool{Name: s}, err
}

// Render applies the simulated chat template. A final message that is to be
// continued is left open, so that its text and the tokens generated after the
// opening of an assistant's message are the same ids.
func (p *Request) Render() error {
	if p.ContinueMsg && p.AddGenerate {
		return pydantic.BadRequest("", nil, "continue_final_message and add_generation_prompt are not compatible. Use continue_final_message when you want the model to continue the final message, "+
			"and add_generation_prompt when you want to add a header that will prompt it to start a new assistant message instead.")
	}
	size := 2
	for _, m := range p.Messages {
		size += len(m.Text)/4 + 4
	}
	ids := make([]int, 0, size)
	if p.Tokenize == nil {
		p.Tokenize = model.AppendTokens
	}
	if len(p.Tools) > 0 && p.ToolChoice != "none" {
		ids = append(ids, model.StartTools)
		ids = p.Tokenize(ids, string(p.rawTools))
		ids = append(ids, model.EndMessage)
	}
	for i, m := range p.Messages {
		ids = append(ids, model.StartMessage, roleToken(m.Role))
		ids = p.Tokenize(ids, m.Text)
		if i < len(p.Messages)-1 || !p.ContinueMsg {
			ids = append(ids, model.EndMessage)
		}
	}
	if p.AddGenerate {
		ids = append(ids, model.StartMessage, roleToken("assistant"))
	}
	p.Prompts = [][]int{ids}
	return nil
}

func roleToken(role string) int { return model.PieceID(role) }

// WantsCall reports whether the answer must be a tool call.
func (p *Request) WantsCall() bool { return p.ToolChoice == "required" || p.ToolChoice == "function" }
