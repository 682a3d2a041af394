package request

import (
	"fmt"
	"slices"

	"github.com/pdmesh/pdmesh/sim/fakevllm/jsontext"
	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
)

// parsePrompt reads "prompt" of /v1/completions: a string, a list of strings, a list of token
// ids or a list of such lists.
func (p *reader) parsePrompt() error {
	raw := p.raw["prompt"]
	switch raw[0] {
	case '"':
		return p.addText(raw)
	case '[':
		// A token takes about six bytes in the usual spelling.
		if ids, ok := pydantic.ScanInts(raw, make([]int, 0, len(raw)/6+1)); ok && len(ids) > 0 {
			return p.addIDs("prompt", ids)
		}
	}
	if err := pydantic.Validate(raw); err != nil {
		return err
	}
	list, err := pydantic.RawList("prompt", raw)
	switch {
	case err != nil:
		return err
	case len(list) == 0:
		return pydantic.BadRequest("", "You must pass at least one prompt")
	case !allStart(list, '"') && !allStart(list, '['):
		ids, err := pydantic.Ints("prompt", raw)
		if err != nil {
			return err
		}
		return p.addIDs("prompt", ids)
	}
	for i, item := range list {
		if item[0] == '"' {
			err = p.addText(item)
		} else {
			var ids []int
			loc := fmt.Sprintf("prompt.%d", i)
			if ids, err = pydantic.Ints(loc, item); err == nil {
				err = p.addIDs(loc, ids)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func allStart(list [][]byte, c byte) bool {
	for _, item := range list {
		if item[0] != c {
			return false
		}
	}
	return true
}

func (p *reader) addText(raw []byte) error {
	text, err := pydantic.Unquote(raw)
	if err != nil {
		return err
	}
	if text == "" {
		return pydantic.BadRequest("", "The decoder prompt cannot be empty")
	}
	p.Prompts = append(p.Prompts, model.Tokenize(text))
	p.PromptText = append(p.PromptText, text)
	return nil
}

func (p *reader) addIDs(loc string, ids []int) error {
	if len(ids) == 0 {
		return pydantic.BadRequest("", "The decoder prompt cannot be empty")
	}
	for i, id := range ids {
		if id < 0 {
			return pydantic.Invalid(fmt.Sprintf("%s.%d", loc, i), "Input should be greater than or equal to 0")
		}
		if id >= model.VocabSize {
			return pydantic.BadRequest("", "Token id %d is out of vocabulary", id)
		}
	}
	p.Prompts = append(p.Prompts, ids)
	return nil
}

const promptIDs = "prompt_token_ids"

// TakePromptIDs takes prompt_token_ids out of kv_transfer_params, as vLLM does since 0.31
// (renderers/online_renderer.py, _reused_prompt_token_ids). The result is nil if the messages are to
// be rendered, also with echo.
func (p *Request) TakePromptIDs() ([]int, error) {
	raw := membersOf(p.KV)[promptIDs]
	if raw == nil {
		return nil, nil
	}
	rest := []byte("{")
	_ = pydantic.ForEachMember(p.KV, func(key string, raw []byte) error { // it was read before
		if key != promptIDs {
			if len(rest) > 1 {
				rest = append(rest, ',')
			}
			rest = append(append(jsontext.AppendString(rest, key), ':'), raw...)
		}
		return nil
	})
	if p.KV = append(rest, '}'); len(p.KV) == len("{}") {
		p.KV = nil
	}
	if string(raw) == "null" || p.Echo {
		return nil, nil
	}
	ids, ok := pydantic.ScanInts(raw, nil)
	if !ok || len(ids) == 0 || slices.Min(ids) < 0 {
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

// Truncate applies truncate_prompt_tokens: the last tokens stay.
func (p *Request) Truncate(maxModelLen int) {
	if p.truncate == nil {
		return
	}
	keep := *p.truncate
	if keep == -1 {
		keep = maxModelLen
		if p.MaxTokens != nil {
			keep -= *p.MaxTokens
		}
	}
	for i, ids := range p.Prompts {
		if keep > 0 && keep < len(ids) {
			p.Prompts[i] = ids[len(ids)-keep:]
		}
	}
}
