package request

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
)

// countTurn counts an answer for every run of messages or items that the model has made.
func (p *reader) countTurn(byModel bool) {
	if byModel && !p.answering {
		p.Turn++
	}
	p.answering = byModel
}

// agentTools reads "tools", whose names are in the objects themselves.
func (p *reader) agentTools(raw []byte) {
	p.rawTools = raw
	for i, item := range p.list("tools", raw) {
		p.Tools = append(p.Tools, Tool{Name: pydantic.Text(p.object(fmt.Sprintf("tools.%d", i), item)["name"])})
	}
}

// agentChoice reads "tool_choice": a string, or an object whose type is one. anyTool and
// oneTool are the values for a call of any tool and of a named one.
func (p *reader) agentChoice(anyTool, oneTool string) func([]byte) {
	return func(raw []byte) {
		p.ToolChoice = pydantic.Text(raw)
		if raw[0] == '{' {
			members := membersOf(raw)
			p.ToolChoice, p.ToolName = pydantic.Text(members["type"]), pydantic.Text(members["name"])
		}
		switch p.ToolChoice {
		case oneTool:
			p.ToolChoice = "function"
			return
		case anyTool:
			p.ToolChoice = "required"
		}
		p.ToolName = ""
	}
}

// messages reads a body of /v1/messages.
func (p *reader) messages() {
	p.only([]string{"model", "stream", "temperature", "top_p", "top_k", "kv_transfer_params", "max_tokens"}, map[string]any{
		"messages": func([]byte) {}, "stop_sequences": &p.Sampling.Stop, "tools": p.agentTools, "tool_choice": p.agentChoice("any", "tool"),
	})
	p.required = []string{"model", "messages", "max_tokens"}
	p.convert()
	p.StopSequences = len(p.Sampling.Stop) > 0
	p.require(p.required...)
	switch {
	case p.ToolChoice == "function" && p.ToolName == "":
		p.Add(pydantic.Invalid("tool_choice", "Value error, tool_choice.name is required when type is 'tool'"))
	case len(p.Tools) == 0: // vLLM generates text then
		p.ToolChoice, p.ToolName = "", ""
	}
	if p.MaxTokens != nil && *p.MaxTokens <= 0 {
		p.Add(pydantic.Invalid("max_tokens", "Value error, max_tokens must be positive"))
	}
	if raw := p.raw["system"]; !pydantic.IsNull(raw) {
		p.Messages = append(p.Messages, Message{Role: "system", Text: p.blocks("system", raw)})
	}
	if p.raw["messages"] == nil {
		return
	}
	for i, raw := range p.list("messages", p.raw["messages"]) {
		loc := fmt.Sprintf("messages.%d", i)
		members := p.object(loc, raw)
		if members["role"] == nil || members["content"] == nil {
			p.Add(pydantic.Missing(loc))
			return
		}
		p.Add(pydantic.OneOf(loc+".role", members["role"], "user", "assistant", "system"))
		m := Message{Role: pydantic.Text(members["role"]), Text: p.blocks(loc+".content", members["content"])}
		p.countTurn(m.Role == "assistant")
		p.Messages = append(p.Messages, m)
	}
}

// blocks returns the text of a content: a string, or blocks, of which those without text
// are shown as they are.
func (p *reader) blocks(loc string, raw []byte) string {
	if raw[0] != '[' {
		return p.text(loc+".str", raw)
	}
	var texts []string
	for _, raw := range p.list(loc, raw) {
		texts = append(texts, cmp.Or(pydantic.Text(membersOf(raw)["text"]), string(raw)))
	}
	return strings.Join(texts, "\n")
}

// responses reads a body of /v1/responses.
func (p *reader) responses() {
	p.Store = true
	var instructions string
	p.only([]string{"model", "stream", "request_id", "ignore_eos", "stop", "kv_transfer_params", "temperature", "top_p", "top_k", "seed",
		"priority", "vllm_xargs", "cache_salt", "stop_token_ids"}, map[string]any{
		"instructions": &instructions, "max_output_tokens": &p.MaxTokens, "store": &p.Store, "background": &p.Background,
		"previous_response_id": &p.Previous, "tools": p.agentTools, "tool_choice": p.agentChoice("required", "function"),
	})
	p.required = []string{"ignore_eos", "priority"}
	p.convert()
	if raw := p.raw["truncation"]; raw != nil && pydantic.Text(raw) != "disabled" { // null, too
		toContext := -1
		p.truncate = &toContext
	}
	store := p.raw["store"]
	switch {
	case p.ToolChoice == "required" && len(p.Tools) == 0: // check_tool_usage
		p.Add(pydantic.BadRequest("tool_choice", "Tool choice 'required' must be specified with 'tools' parameter."))
	case p.ToolChoice == "function" && (p.ToolName == "" || len(p.Tools) == 0):
		p.Add(pydantic.BadRequest("tool_choice", "Tool choice 'function' not found in 'tools' parameter."))
	case !pydantic.IsNull(p.raw["prompt"]):
		p.Add(pydantic.BadRequest("prompt", "prompt template is not supported"))
	case pydantic.Truthy(p.raw["background"]) && store != nil && !pydantic.Truthy(store):
		p.Add(pydantic.BadRequest("", "background can only be used when `store` is true"))
	}
	if !pydantic.IsNull(p.raw["instructions"]) {
		p.Messages = append(p.Messages, Message{Role: "system", Text: instructions})
	}
	raw := p.raw["input"]
	switch {
	case pydantic.IsNull(raw):
		p.Add(pydantic.Missing("input"))
	case raw[0] != '[':
		p.Messages = append(p.Messages, Message{Role: "user", Text: p.text("input.str", raw)})
	default:
		p.items(raw)
	}
}

// items reads the messages and items so far.
func (p *reader) items(raw []byte) {
	for i, raw := range p.list("input", raw) {
		loc := fmt.Sprintf("input.%d", i)
		item := p.object(loc, raw)
		m := Message{Role: "tool", Text: string(raw)} // a call, its result, reasoning: the template shows it as text
		what := pydantic.Text(item["type"])
		byModel := what == "reasoning" || strings.HasSuffix(what, "_call")
		if item["role"] != nil {
			m = p.message(loc, raw)
			byModel = m.Role == "assistant"
		}
		p.countTurn(byModel)
		p.Messages = append(p.Messages, m)
	}
}

// generate reads a body of /inference/v1/generate.
func (p *reader) generate() {
	sampling := maps.Clone(p.into)
	p.only([]string{"model", "stream", "stream_options", "kv_transfer_params", "request_id", "return_token_ids", "priority"}, nil)
	p.convert()
	p.require("token_ids", "sampling_params")
	if raw := p.raw["token_ids"]; raw != nil {
		ids, err := pydantic.Ints("token_ids", raw)
		switch {
		case err != nil:
		case len(ids) == 0:
			err = pydantic.Invalid("token_ids", "List should have at least 1 item after validation, not 0")
		case slices.Min(ids) < 0:
			err = pydantic.Invalid("token_ids", "Value error, token_ids must not contain negative values")
		}
		p.Add(err)
		p.Prompts, p.PromptText = [][]int{ids}, []string{""}
	}
	raw := p.raw["sampling_params"]
	if raw == nil {
		return
	}
	outer := p.Errors
	p.Errors, p.into, p.raw = pydantic.Errors{}, sampling, p.object("sampling_params", raw)
	p.only([]string{"max_tokens", "n", "min_tokens", "ignore_eos", "stop", "stop_token_ids", "prompt_logprobs", "temperature", "top_p", "top_k", "seed"}, nil)
	p.convert()
	if kv := membersOf(p.raw["extra_args"])["kv_transfer_params"]; kv != nil && p.KV == nil {
		p.Add(pydantic.Into(&p.KV, "kv_transfer_params", kv))
	}
	inner := p.Err()
	if p.Errors = outer; inner != nil {
		p.Add(pydantic.Invalid("sampling_params", "Input should be an instance of SamplingParams"))
	}
}
