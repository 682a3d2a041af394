package fakevllm

import (
	"net/http"
	"strconv"

	"github.com/pdmesh/pdmesh/sim/fakevllm/jsontext"
	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
)

// tokenize answers /tokenize for a prompt or for messages.
func (x *exchange) tokenize(body []byte) {
	ids, strs, err := tokenizeRequest(body, x.life.server.opt.tokenizer())
	if err != nil {
		x.reject(judge(body, err))
		return
	}
	if e := x.checkModel(body); e != nil {
		x.reject(e)
		return
	}
	b := append(make([]byte, 0, 7*len(ids)+96), `{"count":`...)
	b = strconv.AppendInt(b, int64(len(ids)), 10)
	b = append(b, `,"max_model_len":`...)
	b = strconv.AppendInt(b, int64(x.life.server.opt.MaxModelLen), 10)
	b = append(b, `,"tokens":`...)
	b = jsontext.AppendInts(b, ids)
	b = append(b, `,"token_strs":`...)
	if !strs {
		b = append(b, "null"...)
	} else {
		b = append(b, '[')
		for i, id := range ids {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(model.AppendWordJSON(append(b, '"'), id), '"')
		}
		b = append(b, ']')
	}
	pydantic.WriteJSON(x.w, http.StatusOK, append(b, '}'))
}

func tokenizeRequest(body []byte, tokenizer func(dst []int, text string) []int) (ids []int, strs bool, err error) {
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
			p.tokenize = tokenizer
			err = p.render()
		}
		if err != nil {
			return nil, false, err
		}
		return p.prompts[0], strs, nil
	}
	if pydantic.IsNull(prompt) {
		return nil, false, pydantic.Complaints( // of both forms
			pydantic.Problem{Kind: "missing", Loc: "body.prompt", Msg: "Field required", Input: pydantic.Describe(body)},
			pydantic.Problem{Kind: "missing", Loc: "body.messages", Msg: "Field required", Input: pydantic.Describe(body)})
	}
	text, err := pydantic.String("prompt", prompt)
	return tokenizer(make([]int, 0, len(text)/5+4), text), strs, err
}

// detokenize answers /detokenize.
func (x *exchange) detokenize(body []byte) {
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
		x.reject(judge(body, err))
		return
	}
	if e := x.checkModel(body); e != nil {
		x.reject(e)
		return
	}
	b := append([]byte(nil), `{"prompt":`...)
	pydantic.WriteJSON(x.w, http.StatusOK, append(jsontext.AppendString(b, model.Detokenize(ids)), '}'))
}

// checkModel refuses a model that is not served; the body was validated.
func (x *exchange) checkModel(body []byte) *pydantic.Error {
	name := ""
	err := pydantic.ForEachMember(body, func(key string, raw []byte) (err error) {
		if key == "model" && !pydantic.IsNull(raw) {
			name, err = pydantic.String(key, raw)
		}
		return err
	})
	if err != nil {
		return pydantic.AsError(err)
	}
	if !x.life.server.servesModel(name) {
		return pydantic.ModelNotFound(name, x.life.server.opt.Models)
	}
	return nil
}
