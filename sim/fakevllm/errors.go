package fakevllm

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
)

// apiError is an answer in vLLM's current error shape,
// {"error":{"message","type","param","code"}} with code an integer; or, without a kind,
// in the shape of the framework under it, {"detail":message}.
type apiError struct {
	status  int
	kind    string
	message string
	param   string // "" is shown as null
	// problems are pydantic's complaints, of which message is made.
	problems []problem
}

func (e *apiError) Error() string { return e.message }

// badRequest is what vLLM's own validation raises; the parameter and the value
// stand behind the sentence as its VLLMValidationError prints them.
func badRequest(param string, value any, format string, args ...any) *apiError {
	msg := fmt.Sprintf(format, args...)
	switch {
	case param != "" && value != nil:
		msg += fmt.Sprintf(" (parameter=%s, value=%v)", param, value)
	case param != "":
		msg += fmt.Sprintf(" (parameter=%s)", param)
	}
	return &apiError{status: http.StatusBadRequest, kind: "BadRequestError", message: msg, param: param}
}

// problem is one pydantic complaint; its texts are Python's.
type problem struct{ kind, loc, msg, input, ctx string }

// invalid is a pydantic complaint about a value of the body; FastAPI's handler titles
// these with the status phrase. loc is dotted.
func invalid(kind, loc string, raw []byte, msg string) *apiError {
	return complaints(problem{kind: kind, loc: bodyLoc(loc), msg: msg, input: describe(raw)})
}

func bodyLoc(loc string) string { return strings.TrimSuffix("body."+loc, ".") }

func complaints(list ...problem) *apiError {
	return &apiError{status: http.StatusBadRequest, kind: "Bad Request", problems: list, param: list[0].loc, message: list[0].msg}
}

// maxReported is how many complaints are told.
const maxReported = 10

func (e *apiError) text() string {
	if e.problems == nil {
		return e.message
	}
	label := "error"
	if len(e.problems) > 1 {
		label = "errors"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d validation %s:", len(e.problems), label)
	for _, p := range e.problems[:min(maxReported, len(e.problems))] {
		fmt.Fprintf(&b, "\n  {'type': %s, 'loc': %s, 'msg': %s, 'input': %s", pyRepr(p.kind), pyRepr(p.loc), pyRepr(p.msg), pyRepr(p.input))
		if p.ctx != "" {
			b.WriteString(", 'ctx': {" + p.ctx + "}")
		}
		b.WriteString("}")
	}
	if more := len(e.problems) - maxReported; more > 0 {
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

// wrongMedia is the complaint about another Content-Type.
func wrongMedia() *apiError {
	return &apiError{status: http.StatusBadRequest, kind: "Bad Request",
		message: "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"}
}

// unreadable is the answer to a body that is no text.
func unreadable() *apiError {
	return &apiError{status: http.StatusBadRequest, message: "There was an error parsing the body"}
}

func internalError() *apiError {
	return &apiError{status: http.StatusInternalServerError, kind: "InternalServerError", message: "Internal server error"}
}

func modelNotFound(model string, served []string) *apiError {
	return &apiError{
		status: http.StatusNotFound, kind: "NotFoundError", param: "model",
		message: fmt.Sprintf("The model `%s` does not exist. Valid aliases: %s.", model, strings.Join(served, ", ")),
	}
}

// asAPIError gives every error of parsing its answer.
func asAPIError(err error) *apiError {
	if e, ok := errors.AsType[*apiError](err); ok {
		return e
	}
	return &apiError{status: http.StatusBadRequest, kind: "BadRequestError", message: err.Error()}
}

// append renders the error object: with spaces in stream events, which vLLM
// makes with json.dumps, and compact in response bodies.
func (e *apiError) append(dst []byte, spaced bool) []byte {
	comma, colon := ",", ":"
	if spaced {
		comma, colon = ", ", ": "
	}
	if e.kind == "" {
		return append(appendJSONString(append(dst, `{"detail"`+colon...), e.message), '}')
	}
	dst = append(dst, `{"error"`+colon+`{"message"`+colon...)
	dst = appendJSONString(dst, e.text())
	dst = append(dst, comma+`"type"`+colon...)
	dst = appendJSONString(dst, e.kind)
	dst = append(dst, comma+`"param"`+colon...)
	if e.param == "" {
		dst = append(dst, "null"...)
	} else {
		dst = appendJSONString(dst, e.param)
	}
	dst = append(dst, comma+`"code"`+colon...)
	dst = strconv.AppendInt(dst, int64(e.status), 10)
	return append(dst, "}}"...)
}

// appendMessages is the shape of /v1/messages.
func (e *apiError) appendMessages(dst []byte) []byte {
	dst = appendJSONString(append(dst, `{"type":"error","error":{"type":`...), e.kind)
	return append(appendJSONString(append(dst, `,"message":`...), e.text()), "}}"...)
}

func (e *apiError) write(w http.ResponseWriter) {
	writeJSON(w, e.status, e.append(nil, false))
}

func writeJSON(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that left is noticed through its context
}
