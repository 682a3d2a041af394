package fakevllm

import (
	"strings"

	"github.com/pdmesh/pdmesh/sim/fakevllm/jsontext"
	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
	"github.com/pdmesh/pdmesh/sim/fakevllm/request"
)

// tokenize answers /tokenize for a prompt or for messages.
func (l *life) tokenize(body []byte) ([]byte, error) {
	ids, strs, err := request.Tokenize(body, l.server.opt.tokenizer())
	if err == nil {
		err = l.checkModel(body)
	}
	if err != nil {
		return nil, err
	}
	var texts any
	if strs {
		list := jsontext.AppendList([]byte("["), ids, func(list []byte, _, id int) []byte {
			return append(model.AppendWordJSON(append(list, '"'), id), '"')
		})
		texts = jsontext.Raw(append(list, ']'))
	}
	return jsontext.Append(make([]byte, 0, 7*len(ids)+96), `{"count":$,"max_model_len":$,"tokens":$,"token_strs":$}`, len(ids), l.server.opt.MaxModelLen, ids, texts), nil
}

// detokenize answers /detokenize.
func (l *life) detokenize(body []byte) ([]byte, error) {
	ids, err := request.Detokenize(body)
	if err == nil {
		err = l.checkModel(body)
	}
	return jsontext.Append(nil, `{"prompt":$}`, strings.ToValidUTF8(model.DetokenizeAll(ids), "\ufffd")), err
}

// checkModel refuses a model that is not served; the body was validated.
func (l *life) checkModel(body []byte) error {
	name := ""
	members, _ := pydantic.Members(body) // it was read before
	if raw := members["model"]; !pydantic.IsNull(raw) {
		if err := pydantic.Into(&name, "model", raw); err != nil {
			return err
		}
	}
	if !l.serves(name) {
		return pydantic.ModelNotFound(name, l.server.opt.Models)
	}
	return nil
}
