package pydantic

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/pdmesh/pdmesh/sim/fakevllm/jsontext"
)

// KindInvalid is the type of the errors that FastAPI's validation reports.
const KindInvalid = "Bad Request"

// Error is an error response in vLLM's shape, {"error":{"message","type","param","code"}}
// with an integer code, or, without a Kind, in FastAPI's, {"detail":message}.
type Error struct {
	Status  int
	Kind    string
	Message string
	Param   string // "" is shown as null
}

func (e *Error) Error() string { return e.Message }

// BadRequest returns an error of vLLM's own validation.
func BadRequest(param, format string, args ...any) *Error {
	return &Error{Status: http.StatusBadRequest, Kind: "BadRequestError", Message: fmt.Sprintf(format, args...), Param: param}
}

// Invalid returns pydantic's error about a value of the body.
func Invalid(loc, message string) *Error {
	param := strings.TrimSuffix("body."+loc, ".")
	return &Error{Status: http.StatusBadRequest, Kind: KindInvalid, Param: param, Message: "1 validation error: " + param + ": " + message}
}

// Missing returns pydantic's error about a field that is required.
func Missing(loc string) *Error { return Invalid(loc, "Field required") }

// InternalError returns the error of a failed engine.
func InternalError() *Error {
	return &Error{Status: http.StatusInternalServerError, Kind: "InternalServerError", Message: "Internal server error"}
}

// ModelNotFound returns the error about a model that is not among those served.
func ModelNotFound(model string, served []string) *Error {
	return &Error{
		Status: http.StatusNotFound, Kind: "NotFoundError", Param: "model",
		Message: fmt.Sprintf("The model `%s` does not exist. Valid aliases: %s.", model, strings.Join(served, ", ")),
	}
}

// AsError returns the response to an error of parsing.
func AsError(err error) *Error {
	e, _ := errors.AsType[*Error](err)
	return e
}

// Errors keeps the first error of pydantic and the first one of vLLM's own validation, which takes
// precedence.
type Errors struct{ pydantic, own error }

// Add keeps err unless it is nil or a former one of its kind was kept.
func (f *Errors) Add(err error) {
	e, ok := errors.AsType[*Error](err)
	switch {
	case err == nil:
	case ok && e.Kind == KindInvalid:
		f.pydantic = cmp.Or(f.pydantic, err)
	default:
		f.own = cmp.Or(f.own, err)
	}
}

// Follow puts the errors of vLLM's own validation that were found earlier before its own, and
// those of pydantic after them.
func (f *Errors) Follow(earlier Errors) {
	f.own, f.pydantic = cmp.Or(earlier.own, f.own), cmp.Or(f.pydantic, earlier.pydantic)
}

// Err returns the error that takes precedence, or nil.
func (f *Errors) Err() error { return cmp.Or(f.own, f.pydantic) }

// Append appends the error object: with spaces in stream events, which vLLM makes with
// json.dumps, and compact in response bodies.
func (e *Error) Append(dst []byte, spaced bool) []byte {
	template, param := `{"error":{"message":$,"type":$,"param":$,"code":$}}`, any(e.Param)
	if spaced {
		template = strings.NewReplacer(",", ", ", ":", ": ").Replace(template)
	}
	if e.Kind == "" {
		return jsontext.Append(dst, `{"detail":$}`, e.Message)
	}
	if e.Param == "" {
		param = nil
	}
	return jsontext.Append(dst, template, e.Message, e.Kind, param, e.Status)
}

// AppendMessages appends the error object of /v1/messages.
func (e *Error) AppendMessages(dst []byte) []byte {
	return jsontext.Append(dst, `{"type":"error","error":{"type":$,"message":$}}`, e.Kind, e.Message)
}

// Write sends the error.
func (e *Error) Write(w http.ResponseWriter) { WriteJSON(w, e.Status, e.Append(nil, false)) }

// WriteJSON sends a JSON body.
func WriteJSON(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that left is noticed through its context
}

// WriteDetail sends an error in FastAPI's shape.
func WriteDetail(w http.ResponseWriter, status int, message string) {
	(&Error{Status: status, Message: message}).Write(w)
}
