package form

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"slices"
	"strconv"
	"strings"

	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/jsonscan"
	"github.com/pdmesh/pdmesh/internal/openai/request"
	"github.com/pdmesh/pdmesh/internal/openai/splice"
)

const (
	// fieldFile is the field that every route with forms requires.
	fieldFile = "file"
	// fieldXargs is the field whose JSON vLLM passes to the engine's core.
	fieldXargs = "vllm_xargs"

	maxPartHeader = 4 << 10 // bytes
	// boundaryBytes are the bytes of a boundary (RFC 2046, section 5.1.1), without space.
	boundaryBytes = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ'()+_,-./:=?"
	// maxField bounds a field that is read, in bytes. It is the bound of vLLM's framework for
	// fields that are not files.
	maxField = 1 << 20
)

// Form holds the fields that the proxy reads of a request to /v1/audio, whose body is
// multipart/form-data (RFC 7578). The body itself is forwarded unchanged.
type Form struct {
	Model  string // "" if the form names none
	Stream bool

	body                 []byte
	modelStart, modelEnd int // of Model in body
}

// Named returns the body with another model, a JSON string. The form must name one.
func (f *Form) Named(model string) splice.Body {
	return splice.Assemble(f.body, []splice.Splice{{Start: f.modelStart, End: f.modelEnd, Text: jsonscan.Unquote([]byte(model))}})
}

// Parse reads a form without copying its file. The error is an *openai.Error with status 400.
//
// Parse refuses a form that an engine could read in another way, because a field that only the
// engine finds could control KV transfers. No engine is asked about such a form.
func Parse(contentType []string, body []byte) (*Form, error) {
	if len(contentType) == 0 {
		return nil, noFile()
	}
	media, _, _ := strings.Cut(contentType[0], ";")
	if len(contentType) == 1 && !strings.EqualFold(strings.TrimSpace(media), "multipart/form-data") {
		return nil, noFile() // to vLLM this is a form without fields
	}
	f, err := read(contentType, body)
	if err != nil {
		err.Final = true
		return nil, err
	}
	return f, nil
}

// read reads a multipart form.
func read(contentType []string, body []byte) (*Form, *openai.Error) {
	boundary, err := boundaryOf(contentType)
	var ends []int // of the parts
	if err == nil {
		ends, err = checkFraming(body, boundary)
	}
	if err != nil {
		return nil, invalid(err)
	}
	f, hasFile := &Form{body: body}, false
	for i, parts := 0, multipart.NewReader(bytes.NewReader(body), boundary); ; i++ {
		p, err := parts.NextRawPart()
		switch {
		case errors.Is(err, io.EOF) && hasFile:
			return f, nil
		case errors.Is(err, io.EOF):
			return nil, noFile()
		case err != nil:
			return nil, invalid(err)
		}
		name, isFile, err := fieldOf(p)
		if err != nil {
			return nil, invalid(err)
		}
		hasFile = hasFile || name == fieldFile && isFile
		if name != fieldXargs && (isFile || name != "model" && name != "stream") {
			continue
		}
		value, err := io.ReadAll(io.LimitReader(p, maxField+1))
		switch {
		case err != nil:
			return nil, invalid(err)
		case len(value) > maxField:
			return nil, invalid(fmt.Errorf("field %s is larger than %d bytes", name, maxField))
		case name == fieldXargs:
			if err := checkXargs(value); err != nil {
				return nil, err
			}
		case name == "model": // the last of several counts
			f.Model, f.modelStart, f.modelEnd = string(value), ends[i]-len(value), ends[i]
		default:
			f.Stream, _ = jsonscan.LaxBool([]byte(strconv.Quote(string(value)))) // the engine refuses other values
		}
	}
}

// boundaryOf returns the boundary of a multipart Content-Type.
func boundaryOf(contentType []string) (string, error) {
	_, params, err := mime.ParseMediaType(contentType[0])
	if before, boundary, _ := strings.Cut(contentType[0], "boundary="); err != nil && strings.Trim(boundary, boundaryBytes) == "" {
		_, params, err = mime.ParseMediaType(before + `boundary="` + boundary + `"`) // engines accept it without quotes
	}
	switch {
	case err != nil:
		return "", fmt.Errorf("Content-Type: %w", err)
	case len(contentType) > 1 || strings.ContainsAny(contentType[0], `*\`): // the encodings of RFC 2231, and escapes
		return "", errors.New("ambiguous Content-Type")
	case !slices.Contains([]string{"", "utf-8", "utf8", "us-ascii", "iso-8859-1"}, strings.ToLower(params["charset"])):
		return "", errors.New("charset must be utf-8 or iso-8859-1") // in others, names of fields are other bytes
	case params["boundary"] == "":
		return "", errors.New("missing boundary in Content-Type")
	}
	return params["boundary"], nil
}

// checkFraming returns an error unless every reader finds the same parts in a body. It is
// stricter than multipart.Reader, which accepts a preamble and lines that end with LF. It returns
// where the parts end.
func checkFraming(body []byte, boundary string) (ends []int, err error) {
	const lineEnd = "\r\n"
	rest, ok := bytes.CutPrefix(bytes.TrimLeft(body, lineEnd), []byte("--"+boundary))
	if !ok {
		return nil, errors.New("the body does not begin with the boundary")
	}
	at := len(body) - len(rest)
	for part := range bytes.SplitSeq(rest, []byte(lineEnd+"--"+boundary)) {
		if bytes.HasPrefix(part, []byte("--")) {
			return ends, nil
		}
		ends = append(ends, at+len(part))
		at += len(part) + len(lineEnd+"--"+boundary)
		header, _, ok := bytes.Cut(part, []byte(lineEnd+lineEnd))
		lines := bytes.Count(header, []byte(lineEnd))
		if !ok || !bytes.HasPrefix(header, []byte(lineEnd)) || len(header) > maxPartHeader ||
			bytes.Count(header, []byte("\n")) != lines || bytes.Count(header, []byte("\r")) != lines {
			return nil, errors.New("malformed header of a part")
		}
	}
	return nil, errors.New("missing final boundary")
}

// fieldOf returns the name of the field in a part, and whether it is a file. The error means
// that not every reader would find the same name.
func fieldOf(p *multipart.Part) (name string, isFile bool, err error) {
	fields := p.Header["Content-Disposition"]
	if len(fields) != 1 {
		return "", false, errors.New("a part must have one Content-Disposition")
	}
	disposition, params, err := mime.ParseMediaType(fields[0])
	if rest, file, ok := strings.Cut(fields[0], "; filename="); err != nil && ok && !strings.ContainsAny(file, `;\`) {
		// Some clients neither quote nor escape the name of a file. No other parameter follows this one.
		disposition, params, err = mime.ParseMediaType(rest + "; filename=x")
	}
	_, isFile = params["filename"] // also with an empty one
	switch {
	case err != nil:
		return "", false, fmt.Errorf("Content-Disposition: %w", err)
	case disposition != "form-data" || params["name"] == "":
		return "", false, errors.New("Content-Disposition must be form-data with a name")
	case strings.Contains(fields[0], `\\"`), encodedName(fields[0]):
		return "", false, errors.New("ambiguous Content-Disposition")
	}
	return params["name"], isFile, nil
}

// encodedName reports whether a Content-Disposition has a parameter name*, or a part of one
// (RFC 2231), which RFC 7578 forbids. A parameter filename* is ignored by engines.
func encodedName(disposition string) bool {
	for param := range strings.SplitSeq(disposition, ";") {
		if name, _, _ := strings.Cut(strings.ToLower(strings.TrimSpace(param)), "="); strings.HasPrefix(name, "name*") {
			return true
		}
	}
	return false
}

func invalid(err error) *openai.Error { return openai.BadRequest("", "invalid form: "+err.Error()) }

func noFile() *openai.Error {
	return openai.BadRequest(fieldFile, "missing required field: "+fieldFile)
}

// checkXargs returns an error for parameters that control KV transfers. Engines would follow
// them, and they cannot be removed from a form that is forwarded unchanged.
func checkXargs(xargs []byte) *openai.Error {
	const before, after = `{"` + fieldXargs + `":`, `}`
	object := append(append([]byte(before), xargs...), after...)
	r, err := request.ParseOther(object)
	if err != nil || bytes.HasPrefix(bytes.TrimSpace(xargs), []byte{'"'}) {
		return openai.BadRequest(fieldXargs, "invalid vllm_xargs: must be a JSON object")
	}
	if e := r.NewEdit(); e.Body().Len() != int64(len(object)) {
		return openai.BadRequest(fieldXargs, "invalid vllm_xargs: must not hold transfer parameters")
	}
	return nil
}
