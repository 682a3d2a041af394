package openai

// Kind is the endpoint that a request came in on, and with it the form of what is
// said there: the fields of requests, the events of streams, the shape of errors.
type Kind uint8

// The kinds.
const (
	Completion Kind = iota // POST /v1/completions
	Chat                   // POST /v1/chat/completions
	Responses              // POST /v1/responses
	Messages               // POST /v1/messages, as Anthropic's
	Generate               // POST /inference/v1/generate: token ids in, token ids out
	// Other is any other endpoint. What a stream of such a one means is not known:
	// its first event is taken for content, and any clean end for its end.
	Other
)

// Generating are the kinds whose answers are generated from a prompt, which can
// therefore go through prefill and decode.
func Generating() []Kind { return []Kind{Completion, Chat, Responses, Messages, Generate} }

// KindOf is the kind of a path.
func KindOf(path string) Kind {
	for _, k := range Generating() {
		if k.Path() == path {
			return k
		}
	}
	return Other
}

// ErrorKindOf is the kind whose form the errors of a path have.
func ErrorKindOf(path string) Kind {
	if path == "/v1/messages/count_tokens" {
		return Messages
	}
	return KindOf(path)
}

// Path is the endpoint's path, the same at the proxy and at the engine; "" for Other.
func (k Kind) Path() string {
	return [...]string{
		Completion: "/v1/completions", Chat: "/v1/chat/completions", Responses: "/v1/responses", Messages: "/v1/messages",
		Generate: "/inference/v1/generate", Other: "",
	}[k]
}
