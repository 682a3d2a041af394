package request

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime/multipart"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/pdmesh/pdmesh/sim/fakevllm/jsontext"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
)

// The limits of FastAPI on fields that are not files.
const (
	maxFields    = 1000
	maxFieldSize = 1 << 20
)

// Form is a parsed form, as FastAPI reads it. Of several fields of one name the last counts.
type Form struct {
	Texts map[string]string
	Files map[string][]byte
}

// ReadForm reads a body by its Content-Type. A body of a type that is not a form's has no fields.
func ReadForm(r *http.Request, body []byte) (*Form, error) {
	f := &Form{Texts: map[string]string{}, Files: map[string][]byte{}}
	media, rest, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	switch strings.ToLower(strings.TrimSpace(media)) {
	case "application/x-www-form-urlencoded":
		values, err := url.ParseQuery(string(body))
		if err != nil {
			return nil, formError("Invalid form data.")
		}
		for name, all := range values {
			f.Texts[name] = all[len(all)-1]
		}
		return f, nil
	case "multipart/form-data":
		return f, f.multipart(rest, body)
	}
	return f, nil
}

func formError(message string) error {
	return &pydantic.Error{Status: http.StatusBadRequest, Message: message}
}

func (f *Form) multipart(params string, body []byte) error {
	boundary, found := "", false
	for p := range strings.SplitSeq(params, ";") {
		if name, value, _ := strings.Cut(strings.TrimSpace(p), "="); strings.EqualFold(name, "boundary") {
			boundary, found = strings.Trim(value, `"`), true
		}
	}
	switch begin := bytes.TrimLeft(body, "\r\n"); {
	case !found:
		return formError("Missing boundary in multipart.")
	case len(body) == 0 && boundary != "":
		return nil
	case boundary == "", !bytes.HasPrefix(begin, []byte("--"+boundary+"\r\n")):
		return formError("Invalid multipart data.")
	}
	delimiter := "\r\n--" + boundary
	if !bytes.Contains(body, []byte(delimiter+"--")) {
		// vLLM accepts a body without its end, but drops an incomplete part.
		body = append(bytes.Clone(body[:max(0, bytes.LastIndex(body, []byte(delimiter+"\r\n")))]), delimiter+"--"...)
	}
	parts, fields := multipart.NewReader(bytes.NewReader(body), boundary), 0
	for {
		p, err := parts.NextRawPart()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return formError("Invalid multipart data.")
		}
		data, err := io.ReadAll(p)
		if err != nil {
			return formError("Invalid multipart data.")
		}
		name := p.FormName()
		if name == "" {
			return formError(`The Content-Disposition header field "name" must be provided.`)
		}
		if p.FileName() != "" {
			f.Files[name] = data
			delete(f.Texts, name)
			continue
		}
		if fields++; fields > maxFields {
			return formError(fmt.Sprintf("Too many fields. Maximum number of fields is %d.", maxFields))
		}
		if len(data) > maxFieldSize {
			return formError(fmt.Sprintf("Part exceeded maximum size of %dKB.", maxFieldSize>>10))
		}
		f.Texts[name] = string(data)
		delete(f.Files, name)
	}
}

// formFields returns what the fields of vLLM's TranscriptionRequest that have a type are
// converted into.
func formFields() map[string]any {
	fields := map[string]any{}
	for _, name := range []string{"stream", "stream_include_usage", "stream_continuous_usage_stats", "use_beam_search",
		"include_stop_str_in_output", "watermarking"} {
		fields[name] = new(bool)
	}
	for _, name := range []string{"n", "top_k", "seed", "max_completion_tokens"} {
		fields[name] = new(int)
	}
	for _, name := range []string{"length_penalty", "temperature", "top_p", "min_p", "frequency_penalty", "repetition_penalty", "presence_penalty"} {
		fields[name] = new(float64)
	}
	return fields
}

// Check reports what pydantic and vLLM refuse of a form.
func (f *Form) Check() error {
	if _, ok := f.Texts["file"]; ok {
		return &pydantic.Error{Status: http.StatusUnprocessableEntity, Kind: "Unprocessable Entity",
			Message: "Expected 'file' to be a file-like object, not 'str'."}
	}
	for _, name := range []string{"stream_include_usage", "stream_continuous_usage_stats"} {
		if f.Texts[name] != "" && f.Texts["stream"] == "" {
			return pydantic.BadRequest(name, "Stream options can only be defined when `stream=True`.")
		}
	}
	if xargs, ok := f.Texts["vllm_xargs"]; ok && !json.Valid([]byte(xargs)) {
		return pydantic.BadRequest("vllm_xargs", "Failed to parse vllm_xargs. Must be valid JSON")
	}
	if _, ok := f.Files["file"]; !ok {
		return pydantic.Missing("file")
	}
	if text, ok := f.Texts["response_format"]; ok && !slices.Contains([]string{"json", "text", "srt", "verbose_json", "vtt", "diarized_json"}, text) {
		return pydantic.Invalid("response_format", "Input should be a known format")
	}
	fields := formFields()
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if text, ok := f.Texts[name]; ok {
			if err := pydantic.Into(fields[name], name, jsontext.AppendString(nil, text)); err != nil {
				return err
			}
		}
	}
	return nil
}
