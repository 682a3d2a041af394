package request

import (
	"errors"
	"fmt"
	"net/http"
	"unicode/utf8"

	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/jsonscan"
)

// badJSON returns the error of a body that could not be read.
func badJSON(body []byte, err error) *openai.Error {
	if !utf8.Valid(body) {
		return &openai.Error{Status: http.StatusBadRequest, Message: "There was an error parsing the body", Final: true}
	}
	var e *jsonscan.Error
	switch {
	case errors.Is(err, errTooMany):
		return ownLimit(fmt.Sprintf("more than %d fields in the request", maxTopLevel))
	case errors.Is(err, errTooManyObjects):
		return ownLimit(fmt.Sprintf("more than %d objects named sampling_params, extra_args or vllm_xargs in the request", maxContainers))
	case !errors.As(err, &e):
		return ownLimit("the request body is not valid JSON: " + err.Error())
	case e.What == jsonscan.NestedTooDeep:
		return ownLimit(fmt.Sprintf("more than %d levels of lists and objects in the request", jsonscan.MaxDepth))
	}
	return openai.BadRequest("", "the request body is "+err.Error())
}

// ownLimit returns the error of a request that vLLM would accept.
func ownLimit(message string) *openai.Error {
	return &openai.Error{Status: http.StatusBadRequest, Type: openai.TypeBadRequest, Message: message, Final: true}
}
