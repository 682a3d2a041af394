package form

import (
	"bytes"
	"strings"

	"github.com/pdmesh/pdmesh/internal/openai"
)

// maxPartHead bounds the header of a part, in bytes.
const maxPartHead = 4 << 10

// part is one field of a form.
type part struct {
	name string
	file bool // it has a file name
	data []byte
}

// partReader goes through the parts of a form.
type partReader struct {
	body      []byte
	delimiter []byte // CR LF, two dashes, the boundary
	at        int    // behind the last delimiter
	cut       bool   // the body has ended within a part
}

// begin goes to the first part. Empty lines may precede it, nothing else.
func (r *partReader) begin() *openai.Error {
	for bytes.HasPrefix(r.body[r.at:], r.delimiter[:2]) {
		r.at += 2
	}
	if len(r.body) == 0 {
		return noFile()
	}
	if !bytes.HasPrefix(r.body[r.at:], r.delimiter[2:]) {
		return invalidForm()
	}
	r.at += len(r.delimiter) - 2
	return nil
}

// next returns the next part, nil at the end of the form. What follows the end is not
// looked at, as by vLLM.
func (r *partReader) next() (*part, *openai.Error) {
	rest := r.body[r.at:]
	switch {
	case bytes.HasPrefix(rest, []byte("--")):
		return nil, nil
	case !bytes.HasPrefix(rest, []byte("\r\n")):
		return nil, invalidForm()
	}
	// Looked for from the line end on: a part without lines in its header has none either.
	head := bytes.Index(rest, []byte("\r\n\r\n"))
	if r.cut = head < 0; r.cut || head > maxPartHead {
		return nil, invalidForm()
	}
	p, err := readPart(rest[2 : head+2])
	if err != nil {
		return nil, err
	}
	data := rest[head+4:]
	// The line end that the header ends with may begin the delimiter.
	end := bytes.Index(rest[head+2:], r.delimiter) - 2
	if r.cut = end == -3; end < 0 {
		return nil, invalidForm()
	}
	p.data = data[:end]
	r.at += head + 4 + end + len(r.delimiter)
	return p, nil
}

// readPart reads the header of a part, whose lines end with CR LF.
func readPart(head []byte) (*part, *openai.Error) {
	var p *part
	named := false
	for len(head) > 0 {
		line, tail, ok := bytes.Cut(head, []byte("\r\n"))
		head = tail
		name, value, colon := strings.Cut(string(line), ":")
		if !ok || !colon || !isToken(name) || strings.ContainsAny(value, "\r\n\x00") {
			return nil, invalidForm()
		}
		if !strings.EqualFold(name, "content-disposition") {
			continue
		}
		if p != nil {
			return nil, invalidForm() // which of two counts is nowhere said
		}
		kind, params, ok := parameters(value)
		if !ok || !strings.EqualFold(kind, "form-data") {
			return nil, invalidForm()
		}
		p = &part{}
		p.name, named = params["name"]
		_, p.file = params["filename"]
	}
	if !named {
		return nil, formError(`The Content-Disposition header field "name" must be provided.`)
	}
	return p, nil
}

// parameters reads a value with parameters behind it: media; name=value; name="value".
// ok is false for what two readers could read in two ways. Names with a star are passed
// over (RFC 7578, 4.2).
func parameters(s string) (value string, params map[string]string, ok bool) {
	value, s, _ = strings.Cut(s, ";")
	value = strings.Trim(value, " \t")
	params = map[string]string{}
	for s = strings.TrimLeft(s, " \t"); s != ""; s = strings.TrimLeft(s, " \t") {
		name, rest, has := strings.Cut(s, "=")
		if name = strings.ToLower(name); !has || !isToken(name) {
			return value, params, false
		}
		var text string
		if text, s, ok = parameter(rest); !ok {
			return value, params, false
		}
		if strings.HasSuffix(name, "*") {
			continue
		}
		if _, twice := params[name]; twice || strings.Contains(name, "*") {
			return value, params, false
		}
		params[name] = text
	}
	return value, params, true
}

// parameter reads the value at the beginning of s, and what follows its semicolon.
func parameter(s string) (text, rest string, ok bool) {
	if !strings.HasPrefix(s, `"`) {
		text, rest, _ = strings.Cut(s, ";")
		text = strings.TrimRight(text, " \t")
		return text, rest, !strings.ContainsAny(text, " \t\"\\,")
	}
	end := 1
	for ; end < len(s) && s[end] != '"'; end++ {
		if strings.HasPrefix(s[end:], `\\"`) {
			return "", "", false // an escaped backslash for some, an escaped quote for others
		}
		if strings.HasPrefix(s[end:], `\"`) {
			end++
		}
	}
	if end >= len(s) {
		return "", "", false
	}
	text, s = strings.ReplaceAll(s[1:end], `\"`, `"`), strings.TrimLeft(s[end+1:], " \t")
	if s == "" {
		return text, "", true
	}
	return text, strings.TrimPrefix(s, ";"), s[0] == ';'
}

// isToken tells a token (RFC 9110, 5.6.2).
func isToken(s string) bool {
	for _, c := range []byte(s) {
		switch {
		case '0' <= c && c <= '9', 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z':
		case strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0:
		default:
			return false
		}
	}
	return s != ""
}
