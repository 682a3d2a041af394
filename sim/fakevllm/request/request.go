// Package request reads the bodies of requests as strictly as vLLM does. It checks everything
// that does not depend on an engine.
package request

import (
	"bytes"
	"io"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
)

// Request is a parsed and checked request to one of the routes that generate.
type Request struct {
	API   API
	Chat  bool   // the prompt is made of messages
	Model string // "" when absent: the first served model

	Prompts    [][]int // token ids, one list per prompt
	Tokenize   func(dst []int, text string) []int
	PromptText []string // text of the prompts that came as text, for echo; may be short

	Messages    []Message
	Tools       []Tool
	ToolChoice  string // "", "none", "auto", "required", "function"
	ToolName    string // of ToolChoice "function"
	AddGenerate bool
	ContinueMsg bool
	rawTools    []byte // as the template shows them

	MaxTokens           *int
	MaxCompletionTokens *int
	N                   int
	Sampling            model.Sampling // its MaxTokens is that of Limit
	Stream              bool
	HasStreamOptions    bool // stream_options is present and not null
	IncludeUsage        bool
	ContinuousUsage     bool
	Echo                bool
	Logprobs            *int // completions: number; chat: top_logprobs when logprobs is true
	PromptLogprobs      *int
	ReturnTokenIDs      bool
	StreamInterval      int  // number of tokens of an event
	HideReasoning       bool // include_reasoning is false
	OneCall             bool // parallel_tool_calls is false
	JSON                bool // the answer is structured: a JSON object
	RequestID           string
	CacheSalt           string
	KV                  []byte // raw kv_transfer_params, nil when absent or null
	Priority            int
	truncate            *int
	TruncatesToOne      bool // truncate_prompt_tokens -1 leaves space for one token of the answer

	temperature, topP, minP                              float64
	topK                                                 int
	presencePenalty, frequencyPenalty, repetitionPenalty float64
	BeamSearch                                           bool
	seed                                                 *int

	// Fields of /v1/responses and /v1/messages that no chat has.
	Store, Background bool
	Previous          string // previous_response_id
	StopSequences     bool   // stop_sequences is not empty
	Turn              int    // number of answers in the conversation
}

// The paths of the routes that generate.
const (
	PathCompletions = "/v1/completions"
	PathChat        = "/v1/chat/completions"
	PathResponses   = "/v1/responses"
	PathMessages    = "/v1/messages"
	PathGenerate    = "/inference/v1/generate"
)

// API is the API of a route that generates.
type API uint8

// The APIs. Completions and Chat are the two completion routes.
const (
	Completions API = iota
	Chat
	Responses // /v1/responses
	Messages  // /v1/messages
	Generate  // /inference/v1/generate
)

// APIOf returns the API of a path.
func APIOf(path string) (a API, ok bool) {
	a, ok = map[string]API{
		PathCompletions: Completions, PathChat: Chat, PathResponses: Responses, PathMessages: Messages, PathGenerate: Generate,
	}[path]
	return a, ok
}

// Parse reads a body. The same conversation has the same prompt on all routes that make a chat
// of it.
func (a API) Parse(body []byte) (*Request, error) {
	raw, err := pydantic.Members(body)
	if err != nil {
		return nil, err
	}
	p := a.read(raw)
	if err := p.Err(); err != nil {
		return nil, err
	}
	return &p.Request, nil
}

const maxBody = 256 << 20

// ReadBody reads a body. It allocates once when the length is known.
func ReadBody(r *http.Request) ([]byte, error) {
	if r.ContentLength > 0 && r.ContentLength <= maxBody {
		body := make([]byte, r.ContentLength)
		if _, err := io.ReadFull(r.Body, body); err != nil {
			return nil, err
		}
		// The last byte came with EOF: from here on net/http watches for the
		// client going away.
		return body, nil
	}
	return io.ReadAll(io.LimitReader(r.Body, maxBody))
}

// ReadJSON returns the text of a body that is a JSON object. FastAPI parses what looks like
// JSON by its Content-Type before vLLM checks the type; both allow parameters.
func ReadJSON(r *http.Request, body []byte) ([]byte, error) {
	media, _, _ := strings.Cut(strings.ToLower(r.Header.Get("Content-Type")), ";")
	isJSON, trimmed := media == "application/json", strings.TrimSpace(media)
	raw := bytes.TrimSpace(bytes.TrimPrefix(body, []byte("\ufeff")))
	if trimmed == "application/json" || strings.HasPrefix(trimmed, "application/") && strings.HasSuffix(trimmed, "+json") {
		if !utf8.Valid(body) {
			return nil, &pydantic.Error{Status: http.StatusBadRequest, Message: "There was an error parsing the body"}
		}
		if len(body) > 0 && (!isJSON || len(raw) == 0 || raw[0] != '{') {
			if _, err := pydantic.Validate(raw); err != nil {
				return nil, err
			}
		}
	}
	switch {
	case !isJSON:
		return nil, &pydantic.Error{Status: http.StatusBadRequest, Kind: pydantic.KindInvalid,
			Message: "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"}
	case len(raw) == 0 || pydantic.IsNull(raw):
		return nil, pydantic.Missing("")
	case raw[0] != '{':
		return nil, pydantic.Invalid("", "Input should be a valid dictionary or object to extract fields from")
	}
	return raw, nil
}

// Tokenize reads a body of /tokenize and returns the tokens, and whether their text is asked
// for.
func Tokenize(body []byte, tokenizer func(dst []int, text string) []int) (ids []int, strs bool, err error) {
	members, err := pydantic.Members(body)
	if err != nil {
		return nil, false, err
	}
	if raw := members["return_token_strs"]; !pydantic.IsNull(raw) {
		if strs, err = pydantic.Bool("return_token_strs", raw); err != nil {
			return nil, false, err
		}
	}
	if members["messages"] != nil {
		p := Chat.read(members)
		p.Tokenize = tokenizer
		if err = p.Err(); err == nil {
			err = p.Render()
		}
		return slices.Concat(p.Prompts...), strs, err
	}
	text, err := pydantic.String("prompt", members["prompt"])
	return tokenizer(make([]int, 0, len(text)/5+4), text), strs, err
}

// Detokenize reads a body of /detokenize.
func Detokenize(body []byte) ([]int, error) {
	members, err := pydantic.Members(body)
	if err != nil {
		return nil, err
	}
	tokens := members["tokens"]
	if pydantic.IsNull(tokens) {
		return nil, pydantic.Missing("tokens")
	}
	ids, err := pydantic.Ints("tokens", tokens)
	for i, id := range ids {
		if id < 0 || id >= model.VocabSize {
			return nil, pydantic.BadRequest("tokens", "Token id %d at %d is out of vocabulary", id, i)
		}
	}
	return ids, err
}

// LoadAdapter is the body of /v1/load_lora_adapter; /v1/unload_lora_adapter has the name only
// (vllm/entrypoints/serve/lora/protocol.py).
type LoadAdapter struct {
	Name, Path string
	InPlace    bool
}

// ParseAdapter reads a body of one of the two routes.
func ParseAdapter(body []byte, load bool) (r LoadAdapter, err error) {
	raw, err := pydantic.Members(body)
	if err != nil {
		return r, err
	}
	p := &reader{raw: raw, into: map[string]any{"lora_name": &r.Name, "lora_int_id": new(int)}, required: []string{"lora_name"}}
	if load {
		p.into = map[string]any{"lora_name": &r.Name, "lora_path": &r.Path, "load_inplace": &r.InPlace, "is_3d_lora_weight": new(bool)}
		p.required = append(p.required, "lora_path")
	}
	p.convert()
	p.require(p.required...)
	return r, p.Err()
}
