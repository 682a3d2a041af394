package request

import (
	"fmt"
	"strconv"

	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
)

// parsePrompt reads "prompt" of /v1/completions: a string, a list of strings,
// a list of token ids or a list of such lists.
func (p *reader) parsePrompt() error {
	raw := p.raw.prompt
	switch raw[0] {
	case '"':
		text, err := pydantic.Unquote(raw)
		if err != nil {
			return err
		}
		return p.addText(text)
	case '[':
		// A token takes about six bytes in the usual spelling.
		if ids, ok := pydantic.ScanInts(raw, make([]int, 0, len(raw)/6+1)); ok && len(ids) > 0 {
			return p.addIDs("prompt", ids)
		}
	}
	if err := pydantic.Validate(raw); err != nil {
		return err
	}
	if raw[0] != '[' {
		list := pydantic.Problem{Kind: "list_type", Loc: "body.prompt", Msg: "Input should be a valid list", Input: pydantic.Describe(raw)}
		text := pydantic.Problem{Kind: "string_type", Loc: "body.prompt", Msg: "Input should be a valid string", Input: pydantic.Describe(raw)}
		return pydantic.Complaints(list, list, text, list) // of token ids, of such lists, a text, of texts
	}
	list, err := pydantic.RawList("prompt", raw)
	if err != nil {
		return err
	}
	if len(list) == 0 {
		return pydantic.BadRequest("", nil, "You must pass at least one prompt")
	}
	if allStart(list, '"') {
		for _, item := range list {
			text, err := pydantic.Unquote(item)
			if err != nil {
				return err
			}
			if err := p.addText(text); err != nil {
				return err
			}
		}
		return nil
	}
	if allStart(list, '[') {
		for i, item := range list {
			loc := fmt.Sprintf("prompt.%d", i)
			ids, err := pydantic.Ints(loc, item)
			if err != nil {
				return err
			}
			if err := p.addIDs(loc, ids); err != nil {
				return err
			}
		}
		return nil
	}
	ids, err := pydantic.Ints("prompt", raw)
	if err != nil {
		return err
	}
	return p.addIDs("prompt", ids)
}

func allStart(list [][]byte, c byte) bool {
	for _, item := range list {
		if item[0] != c {
			return false
		}
	}
	return true
}

func (p *reader) addText(text string) error {
	if text == "" {
		return pydantic.BadRequest("", nil, "The decoder prompt cannot be empty")
	}
	p.Prompts = append(p.Prompts, model.Tokenize(text))
	p.PromptText = append(p.PromptText, text)
	return nil
}

func (p *reader) addIDs(loc string, ids []int) error {
	if len(ids) == 0 {
		return pydantic.BadRequest("", nil, "The decoder prompt cannot be empty")
	}
	for i, id := range ids {
		if id < 0 {
			return pydantic.Invalid("greater_than_equal", fmt.Sprintf("%s.%d", loc, i), strconv.AppendInt(nil, int64(id), 10), "Input should be greater than or equal to 0")
		}
		if id >= model.VocabSize {
			return pydantic.BadRequest("", nil, "Token id %d is out of vocabulary", id)
		}
	}
	p.Prompts = append(p.Prompts, ids)
	return nil
}

// Text is what echo gives back for a prompt.
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
