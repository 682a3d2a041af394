package form

import (
	"bytes"
	"net/http"
	"strconv"
	"strings"

	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/jsonscan"
	"github.com/pdmesh/pdmesh/internal/openai/request"
)

// fieldFile is the field of a form that every route with forms wants.
const fieldFile = "file"

// Form is what the proxy reads of the form of a request to /v1/audio: multipart/form-data
// (RFC 7578), which goes on byte for byte.
type Form struct {
	Model  string // "" if it names none
	Stream bool
}

// Parse reads a form without copying it; a file in it is passed over. The error is
// an *Error with status 400, in vLLM's words where it has some.
//
// It takes less than the framework under vLLM: where the two could see different fields,
// which an engine would then read unseen, the form is refused, and no engine is asked.
func Parse(contentType []string, body []byte) (*Form, error) {
	if len(contentType) == 0 {
		return nil, noFile()
	}
	media, params, ok := parameters(contentType[0])
	if len(contentType) == 1 && !strings.EqualFold(media, "multipart/form-data") {
		return nil, noFile() // as vLLM, which sees a form without a file in it
	}
	f, err := readForm(len(contentType) == 1 && ok, params, body)
	if err != nil {
		err.Final = true
		return nil, err
	}
	return f, nil
}

// readForm reads multipart/form-data whose type has these parameters; plain tells that
// they can be read in one way only.
func readForm(plain bool, params map[string]string, body []byte) (*Form, *openai.Error) {
	boundary, err := boundaryOf(plain, params)
	if err != nil {
		return nil, err
	}
	f := &Form{}
	parts := partReader{body: body, delimiter: []byte("\r\n--" + boundary)}
	if err := parts.begin(); err != nil {
		return nil, err
	}
	hasFile := false
	for {
		p, err := parts.next()
		switch {
		case !hasFile && (p == nil && err == nil || parts.cut):
			return nil, noFile() // vLLM does not miss the end
		case err != nil:
			return nil, err
		case p == nil:
			return f, nil
		}
		switch {
		case p.name == "vllm_xargs":
			if err := harmless(p.data); err != nil {
				return nil, err
			}
		case p.name == fieldFile:
			hasFile = hasFile || p.file
		case p.file: // a field that is a file: the engine refuses it
		case p.name == "model": // of several the last counts
			f.Model = string(p.data)
		case p.name == "stream":
			f.Stream, _ = jsonscan.LaxBool([]byte(strconv.Quote(string(p.data)))) // the engine judges it
		}
	}
}

// boundaryOf returns what divides the parts.
func boundaryOf(plain bool, params map[string]string) (string, *openai.Error) {
	boundary, has := params["boundary"]
	switch charset := params["charset"]; {
	case plain && !has:
		return "", formError("Missing boundary in multipart.")
	case !plain, len(boundary) == 0, len(boundary) > 200:
		return "", invalidForm()
	case charset != "" && !strings.EqualFold(charset, "utf-8"):
		// Names of fields could be spelt in another way than by their bytes.
		return "", formError("The charset of a form must be utf-8.")
	}
	return boundary, nil
}

// formError is what the framework under vLLM says of a form that it cannot read.
func formError(message string) *openai.Error {
	return &openai.Error{Status: http.StatusBadRequest, Message: message}
}

func invalidForm() *openai.Error { return formError("Invalid multipart data.") }

// noFile is what vLLM says without a file; it counts the fields of its defaults.
func noFile() *openai.Error {
	return openai.BadRequest(fieldFile, "missing required field: "+fieldFile)
}

// harmless refuses parameters in which a control field stands: engines would follow it,
// and cannot take one that is not theirs to read.
func harmless(xargs []byte) *openai.Error {
	const before, behind = `{"vllm_xargs":`, `}`
	object := append(append([]byte(before), xargs...), behind...)
	r, err := request.ParseOther(object)
	if err != nil || bytes.HasPrefix(bytes.TrimSpace(xargs), []byte{'"'}) {
		return openai.BadRequest("vllm_xargs", "invalid vllm_xargs: must be a JSON object")
	}
	if e := r.NewEdit(); e.Body().Len() != int64(len(object)) {
		return openai.BadRequest("vllm_xargs", "invalid vllm_xargs: must not hold transfer parameters")
	}
	return nil
}
