package request

import (
	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
)

// Tokenize reads a body of /tokenize and returns the tokens, and whether their text is asked
// for.
func Tokenize(body []byte, tokenizer func(dst []int, text string) []int) (ids []int, strs bool, err error) {
	if err := pydantic.Validate(body); err != nil {
		return nil, false, judge(body, err)
	}
	members := membersOf(body)
	if err := pydantic.Into(&strs, "return_token_strs", members["return_token_strs"]); err != nil {
		return nil, false, pydantic.AsError(err)
	}
	if members["messages"] != nil {
		p, err := Chat.Parse(body)
		if err == nil {
			p.Tokenize = tokenizer
			err = p.Render()
		}
		if err != nil {
			return nil, false, pydantic.AsError(err)
		}
		return p.Prompts[0], strs, nil
	}
	if pydantic.IsNull(members["prompt"]) {
		return nil, false, pydantic.Missing("prompt")
	}
	text, err := pydantic.String("prompt", members["prompt"])
	return tokenizer(make([]int, 0, len(text)/5+4), text), strs, err
}

// Detokenize reads a body of /detokenize.
func Detokenize(body []byte) ([]int, error) {
	if err := pydantic.Validate(body); err != nil {
		return nil, judge(body, err)
	}
	tokens := membersOf(body)["tokens"]
	if pydantic.IsNull(tokens) {
		return nil, pydantic.Missing("tokens")
	}
	ids, err := pydantic.Ints("tokens", tokens)
	for i, id := range ids {
		if id < 0 || id >= model.VocabSize {
			return nil, pydantic.BadRequest("tokens", "Token id %d at %d is out of vocabulary", id, i)
		}
	}
	return ids, err
}

// LoadAdapter is the body of /v1/load_lora_adapter; /v1/unload_lora_adapter has the name only
// (vllm/entrypoints/serve/lora/protocol.py).
type LoadAdapter struct {
	Name, Path string
	InPlace    bool
}

// ParseAdapter reads a body of one of the two routes.
func ParseAdapter(body []byte, load bool) (r LoadAdapter, err error) {
	p := &reader{raw: map[string][]byte{}, into: map[string]any{"lora_name": &r.Name}, required: []string{"lora_name"}}
	if load {
		p.into["lora_path"], p.into["load_inplace"], p.into["is_3d_lora_weight"] = &r.Path, &r.InPlace, new(bool)
		p.required = append(p.required, "lora_path")
	} else {
		p.into["lora_int_id"] = new(int)
	}
	if err := p.members(body, ""); err != nil {
		return r, judge(body, err)
	}
	p.require(p.required...)
	return r, p.bad.Err()
}
