package request

import (
	"errors"
	"fmt"
	"net/http"
	"unicode/utf8"

	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/jsonscan"
)

// badJSON returns the error of a body that could not be parsed.
func badJSON(body []byte, err error) *openai.Error {
	if !utf8.Valid(body) {
		return notUTF8()
	}
	if limit, ok := errors.AsType[*openai.Error](err); ok {
		return limit
	}
	if e, ok := errors.AsType[*jsonscan.Error](err); ok && e.What == jsonscan.NestedTooDeep {
		return ownLimit(fmt.Sprintf("more than %d levels of lists and objects in the request", jsonscan.MaxDepth))
	}
	return openai.BadRequest("", "the request body is "+err.Error())
}

func notUTF8() *openai.Error {
	return &openai.Error{Status: http.StatusBadRequest, Message: "There was an error parsing the body", Final: true}
}

// ownLimit returns the error of a request above a limit of the proxy, which vLLM would accept.
func ownLimit(message string) *openai.Error {
	return &openai.Error{Status: http.StatusBadRequest, Type: openai.TypeBadRequest, Message: message, Final: true}
}
