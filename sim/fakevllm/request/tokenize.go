package request

import (
	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
)

// Tokenize reads a body of /tokenize and returns the tokens, and whether their text is asked for.
func Tokenize(body []byte, tokenizer func(dst []int, text string) []int) (ids []int, strs bool, err error) {
	if ids, strs, err = tokenize(body, tokenizer); err != nil {
		return nil, false, judge(body, err)
	}
	return ids, strs, nil
}

func tokenize(body []byte, tokenizer func(dst []int, text string) []int) (ids []int, strs bool, err error) {
	var prompt, messages, wantStrs []byte
	err = pydantic.ForEachMember(body, func(key string, raw []byte) error {
		switch key {
		case "prompt":
			prompt = raw
		case "messages":
			messages = raw
		case "return_token_strs":
			wantStrs = raw
		}
		return pydantic.Validate(raw)
	})
	if err != nil {
		return nil, false, err
	}
	if !pydantic.IsNull(wantStrs) {
		if strs, err = pydantic.Bool("return_token_strs", wantStrs); err != nil {
			return nil, false, err
		}
	}
	if messages != nil {
		p, err := parseParams(body, true)
		if err == nil {
			p.Tokenize = tokenizer
			err = p.Render()
		}
		if err != nil {
			return nil, false, err
		}
		return p.Prompts[0], strs, nil
	}
	if pydantic.IsNull(prompt) {
		return nil, false, pydantic.Complaints( // of both forms
			pydantic.Problem{Kind: "missing", Loc: "body.prompt", Msg: "Field required", Input: pydantic.Describe(body)},
			pydantic.Problem{Kind: "missing", Loc: "body.messages", Msg: "Field required", Input: pydantic.Describe(body)})
	}
	text, err := pydantic.String("prompt", prompt)
	return tokenizer(make([]int, 0, len(text)/5+4), text), strs, err
}

// Detokenize reads a body of /detokenize.
func Detokenize(body []byte) ([]int, error) {
	var tokens []byte
	err := pydantic.ForEachMember(body, func(key string, raw []byte) error {
		if key == "tokens" {
			tokens = raw
		}
		return pydantic.Validate(raw)
	})
	if err == nil && pydantic.IsNull(tokens) {
		err = pydantic.Invalid("missing", "tokens", body, "Field required")
	}
	var ids []int
	if err == nil {
		ids, err = pydantic.Ints("tokens", tokens)
	}
	for i, id := range ids {
		if err == nil && (id < 0 || id >= model.VocabSize) {
			err = pydantic.BadRequest("tokens", nil, "Token id %d at %d is out of vocabulary", id, i)
		}
	}
	if err != nil {
		return nil, judge(body, err)
	}
	return ids, nil
}
