package request

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
)

// parsePrompt reads "prompt" of /v1/completions: a string, a list of strings, a list of token
// ids or a list of such lists.
func (p *reader) parsePrompt(raw []byte) {
	switch first := bytes.TrimSpace(bytes.TrimPrefix(raw, []byte("["))); {
	case raw[0] == '"':
		p.addText(raw)
	case string(first) == "]":
		p.Add(pydantic.BadRequest("", "You must pass at least one prompt"))
	case raw[0] == '[' && (first[0] == '"' || first[0] == '['):
		for i, item := range p.list("prompt", raw) {
			switch {
			case item[0] != first[0]:
				p.Add(pydantic.Invalid("prompt", "Input should be a list of values of one type"))
			case item[0] == '"':
				p.addText(item)
			default:
				p.addIDs(fmt.Sprintf("prompt.%d", i), item)
			}
		}
	default:
		p.addIDs("prompt", raw)
	}
}

func (p *reader) addText(raw []byte) {
	text := pydantic.Text(raw)
	if text == "" {
		p.Add(pydantic.BadRequest("", "The decoder prompt cannot be empty"))
	}
	p.Prompts = append(p.Prompts, model.Tokenize(text))
	p.PromptText = append(p.PromptText, text)
}

func (p *reader) addIDs(loc string, raw []byte) {
	ids, err := pydantic.Ints(loc, raw)
	switch {
	case err != nil:
	case len(ids) == 0:
		err = pydantic.BadRequest("", "The decoder prompt cannot be empty")
	case slices.Min(ids) < 0:
		err = pydantic.Invalid(loc+".0", "Input should be greater than or equal to 0")
	case slices.Max(ids) >= model.VocabSize:
		err = pydantic.BadRequest("", "Token id %d is out of vocabulary", slices.Max(ids))
	}
	p.Add(err)
	p.Prompts = append(p.Prompts, ids)
}

const promptIDs = "prompt_token_ids"

// TakePromptIDs takes prompt_token_ids out of kv_transfer_params, as vLLM does since 0.31
// (renderers/online_renderer.py, _reused_prompt_token_ids). The result is nil if the messages are to
// be rendered, also with echo.
func (p *Request) TakePromptIDs() ([]int, error) {
	rest := membersOf(p.KV)
	raw, ok := rest[promptIDs]
	if !ok {
		return nil, nil
	}
	delete(rest, promptIDs)
	var kept bytes.Buffer
	if p.KV = nil; len(rest) > 0 {
		e := json.NewEncoder(&kept)
		e.SetEscapeHTML(false)
		_ = e.Encode(rest) // it was read before
		p.KV = kept.Bytes()
	}
	if string(raw) == "null" || p.Echo {
		return nil, nil
	}
	var ids []int
	if bytes.IndexByte(raw, 'n') >= 0 || json.Unmarshal(raw, &ids) != nil || len(ids) == 0 || slices.Min(ids) < 0 {
		return nil, pydantic.BadRequest("kv_transfer_params."+promptIDs, "`kv_transfer_params['prompt_token_ids']` must be a non-empty list of non-negative integers.")
	}
	if id := slices.Max(ids); id >= model.VocabSize {
		return nil, pydantic.BadRequest("kv_transfer_params."+promptIDs, "Token id %d is out of vocabulary", id)
	}
	return ids, nil
}

// Text returns the text that echo puts before the answer to a prompt.
func (p *Request) Text(i int) string {
	if i < len(p.PromptText) {
		return p.PromptText[i]
	}
	return model.Detokenize(p.Prompts[i])
}

// Truncate applies truncate_prompt_tokens: the last tokens stay. With -1, all tokens of the answer have
// space after them, or only one since vLLM 0.32 (renderers/params.py, max_truncation_tokens).
func (p *Request) Truncate(maxModelLen int) {
	if p.truncate == nil {
		return
	}
	keep := *p.truncate
	if keep == -1 {
		_, _, output := p.asked()
		if p.TruncatesToOne {
			output = min(output, 1)
		}
		keep = maxModelLen - output
	}
	for i, ids := range p.Prompts {
		if keep > 0 && keep < len(ids) {
			p.Prompts[i] = ids[len(ids)-keep:]
		}
	}
}
