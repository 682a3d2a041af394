package openai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The types of errors, with vLLM's names if vLLM has the error.
const (
	TypeBadRequest     = "BadRequestError"
	TypeInvalid        = "Bad Request" // for values that pydantic refuses
	TypeAuth           = "AuthenticationError"
	TypePermission     = "PermissionDeniedError"
	TypeNotFound       = "NotFoundError"
	TypeMethod         = "MethodNotAllowedError"
	TypeUnsupported    = "Unsupported Media Type"
	TypeTooLarge       = "RequestEntityTooLargeError"
	TypeRateLimit      = "RateLimitError"
	TypeInternal       = "InternalServerError"
	TypeBadGateway     = "BadGatewayError"
	TypeUnavailable    = "ServiceUnavailableError"
	TypeGatewayTimeout = "GatewayTimeoutError"
)

// Error is an error answer of the proxy, in the shape of vLLM and OpenAI:
// {"error":{"message","type","param","code"}}, code being the status. Without a Type, it
// has the shape of FastAPI, vLLM's framework: {"detail":message}.
type Error struct {
	Status     int
	Type       string
	Param      string // "" is sent as null
	Message    string
	RetryAfter time.Duration // sent as Retry-After if positive, in whole seconds
	// Final reports whether an invalid request must not be sent to an engine for the engine's
	// error, because vLLM may accept it, or because the error is known.
	Final bool
}

func (e *Error) Error() string { return e.Message }

// BadRequest returns the error of an invalid request; param names the field, "" for the body.
func BadRequest(param, message string) *Error {
	return &Error{Status: http.StatusBadRequest, Type: TypeBadRequest, Param: param, Message: message}
}

// NotJSON returns vLLM's answer to a request whose Content-Type is not JSON.
func NotJSON() *Error {
	return &Error{Status: http.StatusBadRequest, Type: TypeInvalid, Message: "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"}
}

// maxAliases bounds the names that an error lists. vLLM lists its base models only; a fleet may
// have thousands of LoRA adapters.
const maxAliases = 100

// UnknownModel returns vLLM's answer to a request for a model that no instance serves;
// served are the models that are available.
func UnknownModel(model string, served []string) *Error {
	if n := len(served); n > maxAliases {
		served = append(slices.Clone(served[:maxAliases]), fmt.Sprintf("and %d more", n-maxAliases))
	}
	return &Error{Status: http.StatusNotFound, Type: TypeNotFound, Param: "model",
		Message: fmt.Sprintf("The model `%s` does not exist. Valid aliases: %s.", model, strings.Join(served, ", "))}
}

type errorBody struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    int     `json:"code"`
}

// RetryAfterSeconds returns RetryAfter as the value of the header.
func (e *Error) RetryAfterSeconds() string {
	return strconv.Itoa(int((e.RetryAfter + time.Second - 1) / time.Second))
}

// JSON returns the body of the error.
func (e *Error) JSON() []byte {
	if e.Type == "" {
		return Marshal(map[string]string{"detail": e.Message})
	}
	body := errorBody{Message: e.Message, Type: e.Type, Code: e.Status}
	if e.Param != "" {
		body.Param = &e.Param
	}
	return Marshal(map[string]errorBody{"error": body})
}

// Marshal returns a value that JSON can represent in vLLM's spelling, without HTML escapes.
func Marshal(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// CheckEncoding returns the error for a request whose body is encoded, nil if it is not.
// vLLM reads no encoded body either.
func CheckEncoding(h http.Header) *Error {
	for _, coding := range h["Content-Encoding"] {
		if !strings.EqualFold(coding, "identity") {
			return &Error{Status: http.StatusUnsupportedMediaType, Type: TypeUnsupported, Final: true,
				Message: fmt.Sprintf("Unsupported Media Type: Content-Encoding %.64q is not supported, send the body uncompressed", coding)}
		}
	}
	return nil
}

// WriteError answers a request whose answer has not begun, on a route that has no Kind.
func WriteError(w http.ResponseWriter, e *Error) { Other.WriteError(w, e) }

// WriteError answers a request of this kind whose answer has not begun, and returns the
// number of bytes of the body that it has written.
func (k Kind) WriteError(w http.ResponseWriter, e *Error) int {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	if e.RetryAfter > 0 {
		h.Set("Retry-After", e.RetryAfterSeconds())
	}
	b := k.ErrorJSON(e)
	h.Set("Content-Length", strconv.Itoa(len(b)))
	w.WriteHeader(e.Status)
	n, _ := w.Write(b) // an error means that the client has left
	return n
}
