package openai

// Kind is the endpoint of a request. It determines the fields of requests, the events of
// streams and the shape of errors.
type Kind uint8

// The kinds.
const (
	Completion Kind = iota // POST /v1/completions
	Chat                   // POST /v1/chat/completions
	Responses              // POST /v1/responses
	Messages               // POST /v1/messages, Anthropic's API
	Generate               // POST /inference/v1/generate: token ids in, token ids out
	// Other is any other endpoint. The events of its streams are not known: the first event
	// counts as content, and any clean end as the end.
	Other
)

// Generating returns the kinds whose answers are generated from a prompt, so that they can
// go through prefill and decode.
func Generating() []Kind { return []Kind{Completion, Chat, Responses, Messages, Generate} }

// KindOf returns the kind of a path.
func KindOf(path string) Kind {
	for _, k := range Generating() {
		if k.Path() == path {
			return k
		}
	}
	return Other
}

// ErrorKindOf returns the kind whose shape the errors of a path have.
func ErrorKindOf(path string) Kind {
	if path == "/v1/messages/count_tokens" {
		return Messages
	}
	return KindOf(path)
}

// Path returns the endpoint's path, the same at the proxy and at the engine; "" for Other.
func (k Kind) Path() string {
	return [...]string{
		Completion: "/v1/completions", Chat: "/v1/chat/completions", Responses: "/v1/responses", Messages: "/v1/messages",
		Generate: "/inference/v1/generate", Other: "",
	}[k]
}
