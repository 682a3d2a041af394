package fakevllm

import (
	"net/http"
	"strconv"

	"github.com/pdmesh/pdmesh/sim/fakevllm/jsontext"
	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
	"github.com/pdmesh/pdmesh/sim/fakevllm/request"
)

// tokenize answers /tokenize for a prompt or for messages.
func (x *exchange) tokenize(body []byte) {
	ids, strs, err := request.Tokenize(body, x.life.server.opt.tokenizer())
	if err != nil {
		x.reject(pydantic.AsError(err))
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

// detokenize answers /detokenize.
func (x *exchange) detokenize(body []byte) {
	ids, err := request.Detokenize(body)
	if err != nil {
		x.reject(pydantic.AsError(err))
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
	if !x.life.serves(name) {
		return pydantic.ModelNotFound(name, x.life.server.opt.Models)
	}
	return nil
}
