package pydantic

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"github.com/pdmesh/pdmesh/sim/fakevllm/jsontext"
)

// Error is an answer in vLLM's current error shape,
// {"error":{"message","type","param","code"}} with code an integer; or, without a kind,
// in the shape of the framework under it, {"detail":message}.
type Error struct {
	Status  int
	Kind    string
	Message string
	Param   string // "" is shown as null
	// Problems are pydantic's complaints, of which message is made.
	Problems []Problem
}

func (e *Error) Error() string { return e.Message }

// BadRequest is what vLLM's own validation raises; the parameter and the value
// follow the sentence as its VLLMValidationError prints them.
func BadRequest(param string, value any, format string, args ...any) *Error {
	msg := fmt.Sprintf(format, args...)
	switch {
	case param != "" && value != nil:
		msg += fmt.Sprintf(" (parameter=%s, value=%v)", param, value)
	case param != "":
		msg += fmt.Sprintf(" (parameter=%s)", param)
	}
	return &Error{Status: http.StatusBadRequest, Kind: "BadRequestError", Message: msg, Param: param}
}

// Problem is one pydantic complaint; its texts are Python's.
type Problem struct{ Kind, Loc, Msg, Input, Ctx string }

// Invalid is a pydantic complaint about a value of the body; FastAPI's handler titles
// these with the status phrase. loc is dotted.
func Invalid(kind, loc string, raw []byte, msg string) *Error {
	return Complaints(Problem{Kind: kind, Loc: BodyLoc(loc), Msg: msg, Input: Describe(raw)})
}

func BodyLoc(loc string) string { return strings.TrimSuffix("body."+loc, ".") }

func Complaints(list ...Problem) *Error {
	return &Error{Status: http.StatusBadRequest, Kind: "Bad Request", Problems: list, Param: list[0].Loc, Message: list[0].Msg}
}

// maxReported is how many complaints are told.
const maxReported = 10

func (e *Error) text() string {
	if e.Problems == nil {
		return e.Message
	}
	label := "error"
	if len(e.Problems) > 1 {
		label = "errors"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d validation %s:", len(e.Problems), label)
	for _, p := range e.Problems[:min(maxReported, len(e.Problems))] {
		fmt.Fprintf(&b, "\n  {'type': %s, 'loc': %s, 'msg': %s, 'input': %s", PyRepr(p.Kind), PyRepr(p.Loc), PyRepr(p.Msg), PyRepr(p.Input))
		if p.Ctx != "" {
			b.WriteString(", 'ctx': {" + p.Ctx + "}")
		}
		b.WriteString("}")
	}
	if more := len(e.Problems) - maxReported; more > 0 {
		fmt.Fprintf(&b, "\n  ...and %d more %s", more, label)
	}
	return sanitized(b.String())
}

// vLLM takes what looks like a path of its machine out of what it says.
var (
	systemPath = regexp.MustCompile(`/(?:home|usr|opt|var|tmp|root|lib|mnt|srv)(?:/[\w.\-]+)+`)
	filePath   = regexp.MustCompile(`(?:/[\w\-]+)+/[\w\-]+\.\w+`)
)

func sanitized(s string) string {
	return filePath.ReplaceAllString(systemPath.ReplaceAllString(s, "<path>"), "<path>")
}

// WrongMedia is the complaint about another Content-Type.
func WrongMedia() *Error {
	return &Error{Status: http.StatusBadRequest, Kind: "Bad Request",
		Message: "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"}
}

// Unreadable is the answer to a body that is no text.
func Unreadable() *Error {
	return &Error{Status: http.StatusBadRequest, Message: "There was an error parsing the body"}
}

func InternalError() *Error {
	return &Error{Status: http.StatusInternalServerError, Kind: "InternalServerError", Message: "Internal server error"}
}

func ModelNotFound(model string, served []string) *Error {
	return &Error{
		Status: http.StatusNotFound, Kind: "NotFoundError", Param: "model",
		Message: fmt.Sprintf("The model `%s` does not exist. Valid aliases: %s.", model, strings.Join(served, ", ")),
	}
}

// AsError returns every error of parsing its answer.
func AsError(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return &Error{Status: http.StatusBadRequest, Kind: "BadRequestError", Message: err.Error()}
}

// Append renders the error object: with spaces in stream events, which vLLM
// makes with json.dumps, and compact in response bodies.
func (e *Error) Append(dst []byte, spaced bool) []byte {
	comma, colon := ",", ":"
	if spaced {
		comma, colon = ", ", ": "
	}
	if e.Kind == "" {
		return append(jsontext.AppendString(append(dst, `{"detail"`+colon...), e.Message), '}')
	}
	dst = append(dst, `{"error"`+colon+`{"message"`+colon...)
	dst = jsontext.AppendString(dst, e.text())
	dst = append(dst, comma+`"type"`+colon...)
	dst = jsontext.AppendString(dst, e.Kind)
	dst = append(dst, comma+`"param"`+colon...)
	if e.Param == "" {
		dst = append(dst, "null"...)
	} else {
		dst = jsontext.AppendString(dst, e.Param)
	}
	dst = append(dst, comma+`"code"`+colon...)
	dst = strconv.AppendInt(dst, int64(e.Status), 10)
	return append(dst, "}}"...)
}

// AppendMessages is the shape of /v1/messages.
func (e *Error) AppendMessages(dst []byte) []byte {
	dst = jsontext.AppendString(append(dst, `{"type":"error","error":{"type":`...), e.Kind)
	return append(jsontext.AppendString(append(dst, `,"message":`...), e.text()), "}}"...)
}

func (e *Error) Write(w http.ResponseWriter) {
	WriteJSON(w, e.Status, e.Append(nil, false))
}

func WriteJSON(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that left is noticed through its context
}
