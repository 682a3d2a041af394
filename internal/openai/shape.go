package openai

import (
	"bytes"
	"encoding/json"
	"slices"
)

// ErrorEvent returns an error of the proxy as an event of a stream of this kind. sequence
// is its sequence_number on /v1/responses.
func (k Kind) ErrorEvent(e *Error, sequence int) []byte {
	switch k {
	case Responses:
		return k.errorEvent(Marshal(responsesError{Type: "error", SequenceNumber: sequence, Code: e.Type, Message: e.Message}))
	case Messages:
		return k.errorEvent(e.anthropic())
	case Completion, Chat, Generate, Other:
	}
	return k.errorEvent(e.JSON())
}

// errorEvent returns an event of a stream of this kind, with the data of an error.
func (k Kind) errorEvent(data []byte) []byte {
	before := "data: "
	if k == Responses || k == Messages {
		before = "event: error\ndata: "
	}
	return slices.Concat([]byte(before), data, []byte("\n\n"))
}

// ErrorEventOf returns the body of an engine's error as an event of a stream of this kind;
// sequence is as in ErrorEvent.
func (k Kind) ErrorEventOf(status int, body []byte, sequence int) []byte {
	var parsed struct {
		Type    string          `json:"type"`
		Message string          `json:"message"` // vLLM before 0.10 sent the error flat
		Detail  json.RawMessage `json:"detail"`  // of FastAPI
		Error   json.RawMessage `json:"error"`
	}
	e := Error{Status: status, Type: TypeInternal, Message: string(bytes.ToValidUTF8(body, nil))}
	if json.Unmarshal(body, &parsed) != nil {
		return k.ErrorEvent(&e, sequence)
	}
	var line bytes.Buffer
	if len(parsed.Error) > 0 && parsed.Error[0] == '{' && k != Responses && (k != Messages || parsed.Type == "error") && json.Compact(&line, body) == nil {
		return k.errorEvent(line.Bytes())
	}
	var inner struct{ Type, Message string }
	switch {
	case len(parsed.Error) > 0 && json.Unmarshal(parsed.Error, &inner) == nil && inner.Message != "":
		e.Message = inner.Message
		if inner.Type != "" {
			e.Type = inner.Type
		}
	case parsed.Message != "":
		e.Message = parsed.Message
	case len(parsed.Detail) > 0:
		if e.Message = string(parsed.Detail); json.Unmarshal(parsed.Detail, &inner.Message) == nil {
			e.Message = inner.Message
		}
	}
	return k.ErrorEvent(&e, sequence)
}

// responsesError is the data of an error event of /v1/responses.
type responsesError struct {
	Type           string  `json:"type"`
	SequenceNumber int     `json:"sequence_number"`
	Code           string  `json:"code"`
	Message        string  `json:"message"`
	Param          *string `json:"param"`
}

// anthropicError is an error in the shape of Anthropic's API.
type anthropicError struct {
	Type  string              `json:"type"`
	Error anthropicErrorInner `json:"error"`
}

type anthropicErrorInner struct {
	Type    string `json:"type"`
	Message string `json:"message"`
}

func (e *Error) anthropic() []byte {
	return Marshal(anthropicError{"error", anthropicErrorInner{e.Type, e.Message}})
}

// ErrorJSON returns the body of an error on an endpoint of this kind. Errors of FastAPI,
// and errors about invalid requests, have the same shape on all endpoints.
func (k Kind) ErrorJSON(e *Error) []byte {
	if k != Messages || e.Type == "" || e.Type == TypeInvalid {
		return e.JSON()
	}
	return e.anthropic()
}
