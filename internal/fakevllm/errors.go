package fakevllm

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// apiError is an answer in vLLM's current error shape,
// {"error":{"message","type","param","code"}} with code an integer.
type apiError struct {
	status  int
	kind    string
	message string
	param   string // "" is shown as null
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

// invalid is one pydantic complaint about the body; FastAPI's handler titles
// these with the status phrase. loc is dotted.
func invalid(kind, loc, msg string) *apiError {
	var path strings.Builder
	path.WriteString("'body'")
	for part := range strings.SplitSeq(loc, ".") {
		if _, err := strconv.Atoi(part); err == nil {
			path.WriteString(", " + part)
		} else if part != "" {
			path.WriteString(", '" + part + "'")
		}
	}
	return &apiError{
		status:  http.StatusBadRequest,
		kind:    "Bad Request",
		message: fmt.Sprintf("1 validation error:\n  {'type': '%s', 'loc': (%s), 'msg': '%s'}", kind, path.String(), msg),
		param:   "body." + loc,
	}
}

func internalError() *apiError {
	return &apiError{status: http.StatusInternalServerError, kind: "InternalServerError", message: "Internal server error"}
}

func modelNotFound(model string) *apiError {
	return &apiError{
		status: http.StatusNotFound, kind: "NotFoundError", param: "model",
		message: fmt.Sprintf("The model `%s` does not exist.", model),
	}
}

// asAPIError gives every error of parsing its answer.
func asAPIError(err error) *apiError {
	if e, ok := errors.AsType[*apiError](err); ok {
		return e
	}
	return &apiError{
		status: http.StatusBadRequest, kind: "Bad Request", param: "body",
		message: "1 validation error:\n  {'type': 'json_invalid', 'loc': ('body',), 'msg': '" + err.Error() + "'}",
	}
}

// append renders the error object: with spaces in stream events, which vLLM
// makes with json.dumps, and compact in response bodies.
func (e *apiError) append(dst []byte, spaced bool) []byte {
	comma, colon := ",", ":"
	if spaced {
		comma, colon = ", ", ": "
	}
	dst = append(dst, `{"error"`+colon+`{"message"`+colon...)
	dst = appendJSONString(dst, e.message)
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
