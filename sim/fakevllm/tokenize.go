package fakevllm

import (
	"net/http"
	"strconv"
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
	b = appendInts(b, ids)
	b = append(b, `,"token_strs":`...)
	if !strs {
		b = append(b, "null"...)
	} else {
		b = append(b, '[')
		for i, id := range ids {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(appendWordJSON(append(b, '"'), id), '"')
		}
		b = append(b, ']')
	}
	writeJSON(x.w, http.StatusOK, append(b, '}'))
}

func tokenizeRequest(body []byte, tokenizer func(dst []int, text string) []int) (ids []int, strs bool, err error) {
	var prompt, messages, wantStrs []byte
	err = forEachMember(body, func(key string, raw []byte) error {
		switch key {
		case "prompt":
			prompt = raw
		case "messages":
			messages = raw
		case "return_token_strs":
			wantStrs = raw
		}
		return validate(raw)
	})
	if err != nil {
		return nil, false, err
	}
	if !isNull(wantStrs) {
		if strs, err = laxBool("return_token_strs", wantStrs); err != nil {
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
	if isNull(prompt) {
		return nil, false, complaints( // of both forms
			problem{kind: "missing", loc: "body.prompt", msg: "Field required", input: describe(body)},
			problem{kind: "missing", loc: "body.messages", msg: "Field required", input: describe(body)})
	}
	text, err := strictString("prompt", prompt)
	return tokenizer(make([]int, 0, len(text)/5+4), text), strs, err
}

// detokenize answers /detokenize.
func (x *exchange) detokenize(body []byte) {
	var tokens []byte
	err := forEachMember(body, func(key string, raw []byte) error {
		if key == "tokens" {
			tokens = raw
		}
		return validate(raw)
	})
	if err == nil && isNull(tokens) {
		err = invalid("missing", "tokens", body, "Field required")
	}
	var ids []int
	if err == nil {
		ids, err = laxInts("tokens", tokens)
	}
	for i, id := range ids {
		if err == nil && (id < 0 || id >= VocabSize) {
			err = badRequest("tokens", nil, "Token id %d at %d is out of vocabulary", id, i)
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
	writeJSON(x.w, http.StatusOK, append(appendJSONString(b, Detokenize(ids)), '}'))
}

// checkModel refuses a model that is not served; the body was validated.
func (x *exchange) checkModel(body []byte) *apiError {
	name := ""
	err := forEachMember(body, func(key string, raw []byte) (err error) {
		if key == "model" && !isNull(raw) {
			name, err = strictString(key, raw)
		}
		return err
	})
	if err != nil {
		return asAPIError(err)
	}
	if !x.life.server.servesModel(name) {
		return modelNotFound(name, x.life.server.opt.Models)
	}
	return nil
}
