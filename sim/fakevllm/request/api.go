package request

import "github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"

// The paths of the generating routes.
const (
	PathCompletions = "/v1/completions"
	PathChat        = "/v1/chat/completions"
	PathResponses   = "/v1/responses"
	PathMessages    = "/v1/messages"
	PathGenerate    = "/inference/v1/generate"
)

// API is which of the generating routes a request came in on.
type API uint8

// The APIs. Completions and Chat are the two completion routes.
const (
	Completions API = iota
	Chat
	Responses // /v1/responses
	Messages  // /v1/messages
	Generate  // /inference/v1/generate
)

// APIOf is the API of a generating route.
func APIOf(path string) (a API, ok bool) {
	switch path {
	case PathCompletions:
		return Completions, true
	case PathChat:
		return Chat, true
	case PathResponses:
		return Responses, true
	case PathMessages:
		return Messages, true
	case PathGenerate:
		return Generate, true
	}
	return 0, false
}

// Parse reads a body as strictly as vLLM does. What vLLM makes a chat of is one here,
// too: the same conversation has the same prompt on all of these routes.
func (a API) Parse(body []byte) (*Request, error) {
	var p *reader
	var err error
	switch a {
	case Completions, Chat:
		p, err = readParams(body, a == Chat)
	case Responses:
		p, err = readResponses(body)
	case Messages:
		p, err = readMessages(body)
	case Generate:
		p, err = readGenerate(body)
	}
	if err != nil {
		return nil, judge(body, err)
	}
	p.API = a
	return &p.Request, nil
}

// parseParams reads a request body, a JSON object, as strictly as vLLM does.
func parseParams(body []byte, chat bool) (*reader, error) {
	p, err := readParams(body, chat)
	if err != nil {
		return nil, judge(body, err)
	}
	return p, nil
}

// judge returns the answer to a body in which something is wrong: Python parses all of it
// before anything is looked at.
func judge(body []byte, err error) *pydantic.Error {
	if e := pydantic.Explain(body); e != nil {
		return e
	}
	return pydantic.AsError(err)
}
