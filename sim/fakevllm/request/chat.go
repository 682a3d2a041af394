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
func (p *reader) parseMessages() {
	raw, ok := p.raw["messages"]
	switch {
	case !ok:
		p.Add(pydantic.Missing("messages"))
		return
	case pydantic.IsNull(raw):
		p.Add(pydantic.BadRequest("", "'NoneType' object is not iterable"))
		return
	}
	for i, raw := range p.list("messages", raw) {
		p.Messages = append(p.Messages, p.message(fmt.Sprintf("messages.%d", i), raw))
	}
}

func (p *reader) message(loc string, raw []byte) Message {
	members := p.object(loc, raw)
	m := Message{Role: p.text(loc+".role", members["role"]), Text: p.content(loc+".content", members["content"])}
	if calls := members["tool_calls"]; !pydantic.IsNull(calls) {
		m.Text += string(calls) // the template shows calls as text, so they count as prompt
	}
	return m
}

// content returns the text of a message: a string, or parts joined by newlines.
func (p *reader) content(loc string, raw []byte) string {
	if pydantic.IsNull(raw) {
		return ""
	}
	if raw[0] != '[' {
		return p.text(loc+".str", raw)
	}
	var parts []string
	for i, raw := range p.list(loc, raw) {
		parts = append(parts, p.part(fmt.Sprintf("%s.%d", loc, i), raw))
	}
	return strings.Join(parts, "\n")
}

func (p *reader) part(loc string, raw []byte) string {
	if raw[0] == '"' {
		return pydantic.Text(raw) // vLLM takes bare strings as text parts
	}
	part := p.object(loc, raw)
	kind, text := part["type"], part["text"]
	if text == nil {
		text = part["refusal"]
	}
	name := "text"
	if kind != nil {
		name = p.text(loc+".type", kind)
	}
	switch {
	case kind == nil && text == nil:
		p.Add(pydantic.BadRequest("", "Missing 'type' field in multimodal part."))
	case slices.Contains([]string{"text", "input_text", "output_text", "refusal", "thinking"}, name):
		return p.text(loc+".text", text)
	case slices.Contains([]string{"image_url", "image_embeds", "input_audio", "audio_url", "video_url", "file"}, name):
		p.Add(pydantic.BadRequest("", "The served model is not a multimodal model: it takes no '%s' parts.", name))
	default:
		p.Add(pydantic.BadRequest("", "Unknown part type: %s", name))
	}
	return ""
}

// parseTools checks "tools" and "tool_choice" as vLLM's check_tool_usage does.
func (p *reader) parseTools() {
	if raw := p.raw["tools"]; !pydantic.IsNull(raw) {
		list := p.list("tools", raw)
		if list != nil && len(list) == 0 {
			p.Add(pydantic.BadRequest("tools", "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely."))
		}
		for i, item := range list {
			p.Tools = append(p.Tools, p.tool(fmt.Sprintf("tools.%d", i), item))
		}
		p.rawTools = raw
	}
	raw := p.raw["tool_choice"]
	function := membersOf(membersOf(raw)["function"])
	name := pydantic.Text(function["name"])
	switch text := string(raw); {
	case raw == nil && p.Tools != nil:
		p.ToolChoice = "auto"
	case pydantic.IsNull(raw):
	case text != `"none"` && p.Tools == nil:
		p.Add(pydantic.BadRequest("tool_choice", "When using `tool_choice`, `tools` must be set."))
	case text == `"none"`, text == `"auto"`, text == `"required"`:
		p.ToolChoice = pydantic.Text(raw)
	case raw[0] != '{':
		p.Add(pydantic.BadRequest("tool_choice", "Invalid value for `tool_choice`: %s! Only named tools, \"none\", \"auto\" or \"required\" are supported.", text))
	case function == nil:
		p.Add(pydantic.BadRequest("tool_choice.function", "Invalid value for `function` in `tool_choice`!"))
	case name == "":
		p.Add(pydantic.BadRequest("tool_choice.function.name", "Invalid `name` in `function` in `tool_choice`!"))
	case !slices.Contains(p.Tools, Tool{Name: name}):
		p.Add(pydantic.BadRequest("tool_choice", "The tool specified in `tool_choice` does not match any of the specified `tools`"))
	default:
		p.ToolChoice, p.ToolName = "function", name
	}
}

func (p *reader) tool(loc string, raw []byte) Tool {
	tool := p.object(loc, raw)
	if kind := tool["type"]; kind != nil {
		p.Add(pydantic.OneOf(loc+".type", kind, "function"))
	}
	loc += ".function"
	function := p.object(loc, tool["function"])
	if raw := function["parameters"]; !pydantic.IsNull(raw) {
		p.object(loc+".parameters", raw)
	}
	return Tool{Name: p.text(loc+".name", function["name"])}
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
