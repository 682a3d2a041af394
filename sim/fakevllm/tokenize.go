package fakevllm

import (
	"net/http"
	"strings"

	"github.com/pdmesh/pdmesh/sim/fakevllm/jsontext"
	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
	"github.com/pdmesh/pdmesh/sim/fakevllm/request"
)

// tokenize answers /tokenize for a prompt or for messages.
func (x *exchange) tokenize(body []byte) {
	ids, strs, err := request.Tokenize(body, x.life.server.opt.tokenizer())
	if err != nil {
		x.refuse(pydantic.AsError(err))
		return
	}
	if e := x.checkModel(body); e != nil {
		x.refuse(e)
		return
	}
	var texts any
	if strs {
		list := jsontext.AppendList([]byte("["), ids, func(list []byte, _, id int) []byte {
			return append(model.AppendWordJSON(append(list, '"'), id), '"')
		})
		texts = jsontext.Raw(append(list, ']'))
	}
	pydantic.WriteJSON(x.w, http.StatusOK, jsontext.Append(make([]byte, 0, 7*len(ids)+96), `{"count":$,"max_model_len":$,"tokens":$,"token_strs":$}`,
		len(ids), x.life.server.opt.MaxModelLen, ids, texts))
}

// detokenize answers /detokenize.
func (x *exchange) detokenize(body []byte) {
	ids, err := request.Detokenize(body)
	if err != nil {
		x.refuse(pydantic.AsError(err))
		return
	}
	if e := x.checkModel(body); e != nil {
		x.refuse(e)
		return
	}
	text := strings.ToValidUTF8(model.DetokenizeAll(ids), "\ufffd")
	pydantic.WriteJSON(x.w, http.StatusOK, jsontext.Append(nil, `{"prompt":$}`, text))
}

// checkModel refuses a model that is not served; the body was validated.
func (x *exchange) checkModel(body []byte) *pydantic.Error {
	name := ""
	members, _ := pydantic.Members(body) // it was read before
	if raw := members["model"]; !pydantic.IsNull(raw) {
		if err := pydantic.Into(&name, "model", raw); err != nil {
			return pydantic.AsError(err)
		}
	}
	if !x.life.serves(name) {
		return pydantic.ModelNotFound(name, x.life.server.opt.Models)
	}
	return nil
}
