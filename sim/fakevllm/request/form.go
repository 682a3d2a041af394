package request

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/pdmesh/pdmesh/sim/fakevllm/jsontext"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
)

// The limits of the framework under vLLM on what is no file.
const (
	maxFields    = 1000
	maxFieldSize = 1 << 20
)

// Form is what FastAPI makes of a request with a form; of several fields of a name the
// last counts.
type Form struct {
	Texts map[string]string
	Files map[string][]byte
}

// ReadForm reads a body by its Content-Type. Any other type is a form without fields.
func ReadForm(r *http.Request, body []byte) (*Form, *pydantic.Error) {
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

func formError(message string) *pydantic.Error {
	return &pydantic.Error{Status: http.StatusBadRequest, Message: message}
}

func (f *Form) multipart(params string, body []byte) *pydantic.Error {
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
		// vLLM does not miss the end, but a part that is not whole is not there.
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

// formFields are the fields of vLLM's TranscriptionRequest that have a type, in its order.
func formFields() []struct{ name, kind string } {
	return []struct{ name, kind string }{
		{"response_format", "format"}, {"stream", "bool"}, {"stream_include_usage", "bool"}, {"stream_continuous_usage_stats", "bool"},
		{"use_beam_search", "bool"}, {"n", "int"}, {"length_penalty", "float"}, {"include_stop_str_in_output", "bool"},
		{"temperature", "float"}, {"watermarking", "bool"}, {"top_p", "float"}, {"top_k", "int"}, {"min_p", "float"}, {"seed", "int"},
		{"frequency_penalty", "float"}, {"repetition_penalty", "float"}, {"presence_penalty", "float"}, {"max_completion_tokens", "int"},
	}
}

// defaulted are those of its fields that FastAPI fills in.
func defaulted() []string {
	return []string{
		"prompt", "response_format", "timestamp_granularities[]", "stream", "stream_include_usage", "stream_continuous_usage_stats",
		"use_beam_search", "n", "length_penalty", "include_stop_str_in_output", "temperature", "frequency_penalty", "presence_penalty",
	}
}

// Check is pydantic's and vLLM's judgement of a form.
func (f *Form) Check() *pydantic.Error {
	if _, ok := f.Texts["file"]; ok {
		return &pydantic.Error{Status: http.StatusUnprocessableEntity, Kind: "Unprocessable Entity",
			Message: "Expected 'file' to be a file-like object, not 'str'."}
	}
	for _, name := range []string{"stream_include_usage", "stream_continuous_usage_stats"} {
		if f.Texts[name] != "" && f.Texts["stream"] == "" {
			return pydantic.BadRequest(name, nil, "Stream options can only be defined when `stream=True`.")
		}
	}
	if xargs, ok := f.Texts["vllm_xargs"]; ok && !json.Valid([]byte(xargs)) {
		return pydantic.BadRequest("vllm_xargs", nil, "Failed to parse vllm_xargs. Must be valid JSON")
	}
	var bad []pydantic.Problem
	if _, ok := f.Files["file"]; !ok {
		items := len(defaulted())
		for name := range f.Texts {
			if !slices.Contains(defaulted(), name) {
				items++
			}
		}
		items += len(f.Files)
		bad = append(bad, pydantic.Problem{Kind: "missing", Loc: "body.file", Msg: "Field required", Input: fmt.Sprintf("<dict of %d items>", items)})
	}
	for _, field := range formFields() {
		if text, ok := f.Texts[field.name]; ok {
			bad = append(bad, wrongType(field.name, field.kind, text)...)
		}
	}
	if len(bad) > 0 {
		return pydantic.Complaints(bad...)
	}
	return nil
}

func wrongType(name, kind, text string) []pydantic.Problem {
	p := pydantic.Problem{Loc: "body." + name, Input: text}
	ok := true
	switch kind {
	case "bool":
		p.Kind, p.Msg = "bool_parsing", "Input should be a valid boolean, unable to interpret input"
		_, err := pydantic.Bool(name, jsontext.AppendString(nil, text))
		ok = err == nil
	case "int":
		p.Kind, p.Msg = "int_parsing", "Input should be a valid integer, unable to parse string as an integer"
		_, err := strconv.Atoi(strings.TrimSpace(text))
		ok = err == nil
	case "float":
		p.Kind, p.Msg = "float_parsing", "Input should be a valid number, unable to parse string as a number"
		_, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
		ok = err == nil
	case "format":
		const first, second = "'json', 'text', 'srt', 'verbose_json' or 'vtt'", "'diarized_json'"
		if strings.Contains(first+second, "'"+text+"'") {
			return nil
		}
		literal := func(of string) pydantic.Problem {
			return pydantic.Problem{Kind: "literal_error", Loc: p.Loc, Msg: "Input should be " + of, Input: text, Ctx: "'expected': " + pydantic.PyRepr(of)}
		}
		return []pydantic.Problem{literal(first), literal(second)}
	}
	if ok {
		return nil
	}
	return []pydantic.Problem{p}
}
