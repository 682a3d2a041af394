package request

import (
	"fmt"
	"maps"
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
func (p *reader) agentTools(raw []byte) error {
	list, err := pydantic.RawList("tools", raw)
	if err != nil {
		return err
	}
	p.rawTools = raw
	for i, item := range list {
		if err := pydantic.Object(fmt.Sprintf("tools.%d", i), item); err != nil {
			return err
		}
		p.Tools = append(p.Tools, Tool{Name: textOf(membersOf(item)["name"])})
	}
	return nil
}

// textOf returns the text of a string that was read before, or "" for anything else.
func textOf(raw []byte) string {
	if len(raw) == 0 || raw[0] != '"' {
		return ""
	}
	s, _ := pydantic.Unquote(raw)
	return s
}

// agentChoice reads "tool_choice": a string, or an object whose type is one. anyTool and
// oneTool are the values for a call of any tool and of a named one.
func (p *reader) agentChoice(anyTool, oneTool string) func([]byte) error {
	return func(raw []byte) error {
		choice := textOf(raw)
		if raw[0] == '{' {
			members := membersOf(raw)
			choice, p.ToolName = textOf(members["type"]), textOf(members["name"])
		}
		switch choice {
		case anyTool:
			choice = "required"
		case oneTool:
			choice = "function"
		}
		if p.ToolChoice = choice; choice != "function" {
			p.ToolName = ""
		}
		return nil
	}
}

// readMessages reads a body of /v1/messages.
func readMessages(body []byte) (*reader, error) {
	p := newReader(true)
	p.only([]string{"model", "stream", "temperature", "top_p", "top_k", "kv_transfer_params", "max_tokens"}, map[string]any{
		"messages": func([]byte) error { return nil }, "stop_sequences": &p.Sampling.Stop, "tools": p.agentTools, "tool_choice": p.agentChoice("any", "tool"),
	})
	p.required = []string{"model", "messages", "max_tokens"}
	if err := p.members(body, ""); err != nil {
		return nil, err
	}
	p.StopSequences = len(p.Sampling.Stop) > 0
	p.require(p.required...)
	switch {
	case p.ToolChoice == "function" && p.ToolName == "":
		_ = p.bad.Add(pydantic.Invalid("tool_choice", "Value error, tool_choice.name is required when type is 'tool'")) // always kept
	case len(p.Tools) == 0: // vLLM generates text then
		p.ToolChoice, p.ToolName = "", ""
	}
	if p.MaxTokens != nil && *p.MaxTokens <= 0 {
		_ = p.bad.Add(pydantic.Invalid("max_tokens", "Value error, max_tokens must be positive")) // always kept
	}
	if err := p.bad.Add(p.parseBlocks()); err != nil {
		return nil, err
	}
	return p, p.bad.Err()
}

// parseBlocks reads "system" and "messages" of /v1/messages.
func (p *reader) parseBlocks() error {
	if raw := p.raw["system"]; !pydantic.IsNull(raw) {
		text, err := blocksText("system", raw)
		if err != nil {
			return err
		}
		p.Messages = append(p.Messages, Message{Role: "system", Text: text})
	}
	if p.raw["messages"] == nil {
		return nil
	}
	list, err := pydantic.RawList("messages", p.raw["messages"])
	if err != nil {
		return err
	}
	for i, raw := range list {
		loc := fmt.Sprintf("messages.%d", i)
		if err := pydantic.Object(loc, raw); err != nil {
			return err
		}
		members := membersOf(raw)
		if members["role"] == nil || members["content"] == nil {
			return pydantic.Missing(loc)
		}
		if err := pydantic.OneOf(loc+".role", members["role"], "user", "assistant", "system"); err != nil {
			return err
		}
		m := Message{Role: textOf(members["role"])}
		p.countTurn(m.Role == "assistant")
		if m.Text, err = blocksText(loc+".content", members["content"]); err != nil {
			return err
		}
		p.Messages = append(p.Messages, m)
	}
	return nil
}

// blocksText returns the text of a content: a string, or blocks, of which those without text
// are shown as they are.
func blocksText(loc string, raw []byte) (string, error) {
	if raw[0] != '[' {
		return pydantic.String(loc+".str", raw)
	}
	list, err := pydantic.RawList(loc, raw)
	if err != nil {
		return "", err
	}
	texts := make([]string, len(list))
	for i, raw := range list {
		texts[i] = string(raw)
		if text := membersOf(raw)["text"]; len(text) > 0 && text[0] == '"' {
			texts[i] = textOf(text)
		}
	}
	return strings.Join(texts, "\n"), nil
}

// readResponses reads a body of /v1/responses.
func readResponses(body []byte) (*reader, error) {
	p := newReader(true)
	p.Store = true
	instructions := ""
	p.only([]string{"model", "stream", "request_id", "ignore_eos", "stop", "kv_transfer_params", "temperature", "top_p", "top_k", "seed",
		"priority", "vllm_xargs", "cache_salt"}, map[string]any{
		"instructions": &instructions, "max_output_tokens": &p.MaxTokens, "store": &p.Store, "background": &p.Background,
		"previous_response_id": &p.Previous, "tools": p.agentTools, "tool_choice": p.agentChoice("required", "function"),
	})
	p.required = []string{"ignore_eos", "priority"}
	if err := p.members(body, ""); err != nil {
		return nil, err
	}
	store := p.raw["store"]
	switch {
	case p.ToolChoice == "required" && len(p.Tools) == 0: // check_tool_usage
		return nil, pydantic.BadRequest("tool_choice", "Tool choice 'required' must be specified with 'tools' parameter.")
	case p.ToolChoice == "function" && (p.ToolName == "" || len(p.Tools) == 0):
		return nil, pydantic.BadRequest("tool_choice", "Tool choice 'function' not found in 'tools' parameter.")
	case !pydantic.IsNull(p.raw["prompt"]):
		return nil, pydantic.BadRequest("prompt", "prompt template is not supported")
	case pydantic.Truthy(p.raw["background"]) && store != nil && !pydantic.Truthy(store):
		return nil, pydantic.BadRequest("", "background can only be used when `store` is true")
	}
	p.Store = p.Store || pydantic.IsNull(store)
	if !pydantic.IsNull(p.raw["instructions"]) {
		p.Messages = append(p.Messages, Message{Role: "system", Text: instructions})
	}
	raw := p.raw["input"]
	if pydantic.IsNull(raw) {
		return nil, pydantic.Missing("input")
	}
	if err := p.bad.Add(p.parseInput(raw)); err != nil {
		return nil, err
	}
	return p, p.bad.Err()
}

// parseInput reads "input": a text, or a list of the messages and items so far.
func (p *reader) parseInput(raw []byte) error {
	if raw[0] != '[' {
		text, err := pydantic.String("input.str", raw)
		p.Messages = append(p.Messages, Message{Role: "user", Text: text})
		return err
	}
	list, err := pydantic.RawList("input", raw)
	if err != nil {
		return err
	}
	for i, raw := range list {
		loc := fmt.Sprintf("input.%d", i)
		if err := pydantic.Object(loc, raw); err != nil {
			return err
		}
		item := membersOf(raw)
		m := Message{Role: "tool", Text: string(raw)} // a call, its result, reasoning: the template shows it as text
		what := textOf(item["type"])
		byModel := what == "reasoning" || strings.HasSuffix(what, "_call")
		if item["role"] != nil {
			if m, err = parseMessage(loc, raw); err != nil {
				return err
			}
			byModel = m.Role == "assistant"
		}
		p.countTurn(byModel)
		p.Messages = append(p.Messages, m)
	}
	return nil
}

// readGenerate reads a body of /inference/v1/generate.
func readGenerate(body []byte) (*reader, error) {
	p := newReader(false)
	sampling := maps.Clone(p.into)
	p.only([]string{"model", "stream", "stream_options", "kv_transfer_params", "request_id", "return_token_ids", "priority"}, nil)
	if err := p.members(body, ""); err != nil {
		return nil, err
	}
	p.require("token_ids", "sampling_params")
	if raw := p.raw["token_ids"]; raw != nil {
		ids, err := tokenIDs(raw)
		if err := p.bad.Add(err); err != nil {
			return nil, err
		}
		p.Prompts, p.PromptText = [][]int{ids}, []string{""}
	}
	if raw := p.raw["sampling_params"]; raw != nil {
		p.into = sampling
		if err := p.readSampling(raw); err != nil {
			_ = p.bad.Add(pydantic.Invalid("sampling_params", "Input should be an instance of SamplingParams")) // always kept
		}
	}
	return p, p.bad.Err()
}

func tokenIDs(raw []byte) ([]int, error) {
	ids, err := pydantic.Ints("token_ids", raw)
	if err == nil && len(ids) == 0 {
		err = pydantic.Invalid("token_ids", "List should have at least 1 item after validation, not 0")
	}
	for _, id := range ids {
		if id < 0 {
			return nil, pydantic.Invalid("token_ids", "Value error, token_ids must not contain negative values")
		}
	}
	return ids, err
}

func (p *reader) readSampling(raw []byte) error {
	if err := pydantic.Object("sampling_params", raw); err != nil {
		return err
	}
	return pydantic.ForEachMember(raw, func(key string, raw []byte) error {
		switch key {
		case "max_tokens", "n", "min_tokens", "ignore_eos", "stop", "stop_token_ids", "prompt_logprobs", "temperature", "top_p", "top_k", "seed":
			return p.member(key, raw)
		case "extra_args":
			if kv := membersOf(raw)["kv_transfer_params"]; kv != nil && p.KV == nil {
				return p.member("kv_transfer_params", kv)
			}
		}
		return nil
	})
}
