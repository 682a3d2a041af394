package request

import (
	"slices"

	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
)

// Tokenize reads a body of /tokenize and returns the tokens, and whether their text is asked
// for.
func Tokenize(body []byte, tokenizer func(dst []int, text string) []int) (ids []int, strs bool, err error) {
	members, err := pydantic.Members(body)
	if err != nil {
		return nil, false, err
	}
	if raw := members["return_token_strs"]; !pydantic.IsNull(raw) {
		if strs, err = pydantic.Bool("return_token_strs", raw); err != nil {
			return nil, false, err
		}
	}
	if members["messages"] != nil {
		p := Chat.read(members)
		p.Tokenize = tokenizer
		if err = p.Err(); err == nil {
			err = p.Render()
		}
		return slices.Concat(p.Prompts...), strs, err
	}
	text, err := pydantic.String("prompt", members["prompt"])
	return tokenizer(make([]int, 0, len(text)/5+4), text), strs, err
}

// Detokenize reads a body of /detokenize.
func Detokenize(body []byte) ([]int, error) {
	members, err := pydantic.Members(body)
	if err != nil {
		return nil, err
	}
	tokens := members["tokens"]
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
	raw, err := pydantic.Members(body)
	if err != nil {
		return r, err
	}
	p := &reader{raw: raw, into: map[string]any{"lora_name": &r.Name, "lora_int_id": new(int)}, required: []string{"lora_name"}}
	if load {
		p.into = map[string]any{"lora_name": &r.Name, "lora_path": &r.Path, "load_inplace": &r.InPlace, "is_3d_lora_weight": new(bool)}
		p.required = append(p.required, "lora_path")
	}
	p.convert()
	p.require(p.required...)
	return r, p.Err()
}
