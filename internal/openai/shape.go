package openai

// ErrorEvent is an error of ours as an event of a stream of this kind.
func (k Kind) ErrorEvent(e *Error) []byte {
	var event []byte
	switch k {
	case Responses:
		event = append(event, "event: error\ndata: "...)
		event = append(event, marshal(responsesError{Type: "error", Code: e.Type, Message: e.Message})...)
	case Messages:
		event = append(event, "event: error\ndata: "...)
		event = append(event, e.anthropic()...)
	case Completion, Chat, Generate, Other:
		event = append(event, "data: "...)
		event = append(event, e.JSON()...)
	}
	return append(event, "\n\n"...)
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
	return marshal(anthropicError{"error", anthropicErrorInner{e.Type, e.Message}})
}

// errorJSON is the body of an error on an endpoint of this kind. What the framework
// under vLLM says, and of what is no valid request, has one shape on all of them.
func (k Kind) ErrorJSON(e *Error) []byte {
	if k != Messages || e.Type == "" || e.Type == TypeInvalid {
		return e.JSON()
	}
	return e.anthropic()
}
