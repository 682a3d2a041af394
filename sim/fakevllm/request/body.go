package request

import (
	"bytes"
	"io"
	"net/http"
	"strings"

	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
)

const maxBody = 256 << 20

// ReadBody reads a body. It allocates once when the length is known.
func ReadBody(r *http.Request) ([]byte, error) {
	if r.ContentLength > 0 && r.ContentLength <= maxBody {
		body := make([]byte, r.ContentLength)
		if _, err := io.ReadFull(r.Body, body); err != nil {
			return nil, err
		}
		// The last byte came with EOF: from here on net/http watches for the
		// client going away.
		return body, nil
	}
	return io.ReadAll(io.LimitReader(r.Body, maxBody))
}

// isJSON is vLLM's validate_json_request: parameters are allowed.
func isJSON(r *http.Request) bool {
	media, _, _ := strings.Cut(strings.ToLower(r.Header.Get("Content-Type")), ";")
	return media == "application/json"
}

// looksLikeJSON is FastAPI's opinion of a Content-Type: it reads the body before vLLM
// looks at the type.
func looksLikeJSON(r *http.Request) bool {
	media, _, _ := strings.Cut(strings.ToLower(r.Header.Get("Content-Type")), ";")
	media = strings.TrimSpace(media)
	return media == "application/json" || strings.HasPrefix(media, "application/") && strings.HasSuffix(media, "+json")
}

// ReadJSON returns the text of a body that is a JSON object.
func ReadJSON(r *http.Request, body []byte) ([]byte, *pydantic.Error) {
	if len(body) > 0 && looksLikeJSON(r) {
		text, ok := pydantic.Decode(body)
		if !ok {
			return nil, pydantic.Unreadable()
		}
		if body = text; !isJSON(r) || pydantic.SkipSpace(body, 0) == len(body) || body[pydantic.SkipSpace(body, 0)] != '{' {
			if e := pydantic.Explain(body); e != nil {
				return nil, e
			}
		}
	}
	if !isJSON(r) {
		return nil, pydantic.WrongMedia()
	}
	raw := body[pydantic.SkipSpace(body, 0):]
	switch {
	case len(raw) == 0 || pydantic.IsNull(bytes.TrimRight(raw, " \t\r\n")):
		return nil, pydantic.Complaints(pydantic.Problem{Kind: "missing", Loc: "body", Msg: "Field required", Input: "None"})
	case raw[0] != '{':
		return nil, pydantic.Invalid("model_attributes_type", "", bytes.TrimRight(raw, " \t\r\n"), "Input should be a valid dictionary or object to extract fields from")
	}
	return body, nil
}
