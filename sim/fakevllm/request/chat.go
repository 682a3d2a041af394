package request

import (
	"fmt"
	"slices"
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

// parseMessages reads "messages" of a chat. As in vLLM a role is any string: which roles a
// model knows is up to its template, and the simulated template knows all.
func (p *reader) parseMessages(raw []byte) error {
	switch {
	case raw == nil:
		return pydantic.Missing("messages")
	case pydantic.IsNull(raw):
		return pydantic.BadRequest("", "'NoneType' object is not iterable")
	}
	if err := pydantic.Validate(raw); err != nil && raw[0] != '[' {
		return err
	}
	list, err := pydantic.RawList("messages", raw)
	if err != nil {
		return err
	}
	for i, raw := range list {
		m, err := parseMessage(fmt.Sprintf("messages.%d", i), raw)
		if err != nil {
			return err
		}
		p.Messages = append(p.Messages, m)
	}
	return nil
}

func parseMessage(loc string, raw []byte) (m Message, err error) {
	if err := pydantic.Object(loc, raw); err != nil {
		return m, err
	}
	var role, content, calls []byte
	if err := pydantic.ForEachMember(raw, func(key string, raw []byte) error {
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
	}); err != nil {
		return m, err
	}
	if role == nil {
		return m, pydantic.Missing(loc + ".role")
	}
	if m.Role, err = pydantic.String(loc+".role", role); err != nil {
		return m, err
	}
	if m.Text, err = contentText(loc+".content", content); err == nil && !pydantic.IsNull(calls) {
		m.Text += string(calls) // the template shows calls as text, so they count as prompt
	}
	return m, err
}

// contentText returns the text of a message: a string, or parts joined by newlines.
func contentText(loc string, raw []byte) (string, error) {
	if pydantic.IsNull(raw) {
		return "", nil
	}
	if raw[0] != '[' {
		return pydantic.String(loc+".str", raw)
	}
	list, err := pydantic.RawList(loc, raw)
	if err != nil {
		return "", err
	}
	parts := make([]string, len(list))
	for i, raw := range list {
		if parts[i], err = partText(fmt.Sprintf("%s.%d", loc, i), raw); err != nil {
			return "", err
		}
	}
	return strings.Join(parts, "\n"), nil
}

func partText(loc string, raw []byte) (string, error) {
	if raw[0] == '"' {
		return pydantic.Unquote(raw) // vLLM takes bare strings as text parts
	}
	if err := pydantic.Object(loc, raw); err != nil {
		return "", err
	}
	if err := pydantic.Validate(raw); err != nil {
		return "", err
	}
	part := membersOf(raw)
	kind, text := part["type"], part["text"]
	if text == nil {
		text = part["refusal"]
	}
	if kind == nil && text == nil {
		return "", pydantic.BadRequest("", "Missing 'type' field in multimodal part.")
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
			return "", pydantic.Missing(loc + ".text")
		}
		return pydantic.String(loc+".text", text)
	case "image_url", "image_embeds", "input_audio", "audio_url", "video_url", "file":
		return "", pydantic.BadRequest("", "The served model is not a multimodal model: it takes no '%s' parts.", name)
	}
	return "", pydantic.BadRequest("", "Unknown part type: %s", name)
}

// parseTools checks "tools" and "tool_choice" as vLLM's check_tool_usage does.
func (p *reader) parseTools() error {
	if !p.Chat {
		return nil
	}
	if raw := p.raw["tools"]; !pydantic.IsNull(raw) {
		list, err := pydantic.RawList("tools", raw)
		if err != nil {
			return err
		}
		if len(list) == 0 {
			return pydantic.BadRequest("tools", "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely.")
		}
		for i, item := range list {
			t, err := parseTool(fmt.Sprintf("tools.%d", i), item)
			if err != nil {
				return err
			}
			p.Tools = append(p.Tools, t)
		}
		p.rawTools = raw
	}
	raw := p.raw["tool_choice"]
	switch text := string(raw); {
	case raw == nil && p.Tools != nil:
		p.ToolChoice = "auto"
		return nil
	case pydantic.IsNull(raw):
		return nil
	case text != `"none"` && p.Tools == nil:
		return pydantic.BadRequest("tool_choice", "When using `tool_choice`, `tools` must be set.")
	case text == `"none"`, text == `"auto"`, text == `"required"`:
		p.ToolChoice = strings.Trim(text, `"`)
		return nil
	case raw[0] != '{':
		return pydantic.BadRequest("tool_choice", "Invalid value for `tool_choice`: %s! Only named tools, \"none\", \"auto\" or \"required\" are supported.", text)
	}
	function := membersOf(raw)["function"]
	if len(function) == 0 || function[0] != '{' {
		return pydantic.BadRequest("tool_choice.function", "Invalid value for `function` in `tool_choice`!")
	}
	raw = membersOf(function)["name"]
	if raw == nil {
		raw = []byte("null")
	}
	name, err := pydantic.String("", raw)
	if err != nil || name == "" {
		return pydantic.BadRequest("tool_choice.function.name", "Invalid `name` in `function` in `tool_choice`!")
	}
	if !slices.Contains(p.Tools, Tool{Name: name}) {
		return pydantic.BadRequest("tool_choice", "The tool specified in `tool_choice` does not match any of the specified `tools`")
	}
	p.ToolChoice, p.ToolName = "function", name
	return nil
}

func parseTool(loc string, raw []byte) (t Tool, err error) {
	if err := pydantic.Object(loc, raw); err != nil {
		return t, err
	}
	tool := membersOf(raw)
	switch kind, function := tool["type"], tool["function"]; {
	case kind != nil && string(kind) != `"function"`:
		return t, pydantic.Invalid(loc+".type", "Input should be one of function")
	case function == nil:
		return t, pydantic.Missing(loc + ".function")
	case function[0] != '{':
		return t, pydantic.Object(loc+".function", function)
	}
	loc += ".function"
	function := membersOf(tool["function"])
	if raw := function["parameters"]; !pydantic.IsNull(raw) {
		if err := pydantic.Object(loc+".parameters", raw); err != nil {
			return t, err
		}
	}
	if function["name"] == nil {
		return t, pydantic.Missing(loc + ".name")
	}
	t.Name, err = pydantic.String(loc+".name", function["name"])
	return t, err
}

// Render applies the simulated chat template. A final message that is to be
// continued is left open, so that its text and the tokens generated after the
// opening of an assistant's message are the same ids.
func (p *Request) Render() error {
	if p.ContinueMsg && p.AddGenerate {
		return pydantic.BadRequest("", "continue_final_message and add_generation_prompt are not compatible.")
	}
	if len(p.Messages) == 0 {
		return pydantic.BadRequest("", "Cannot apply chat template to an empty conversation. Provide at least one message.")
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

// Turn returns the length of a prompt up to the last opening of an assistant's message, 0 if it
// has none.
func Turn(ids []int) int {
	for i := len(ids) - 2; i >= 0; i-- {
		if ids[i] == model.StartMessage && ids[i+1] == roleToken("assistant") {
			return i + 2
		}
	}
	return 0
}

// WantsCall reports whether the answer must be a tool call.
func (p *Request) WantsCall() bool { return p.ToolChoice == "required" || p.ToolChoice == "function" }
