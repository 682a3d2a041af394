// Package request reads the bodies of requests as strictly as vLLM does: one file for each
// API, and the checks of what they have in common.
//
// Nothing in it knows an engine: what depends on one, as the served models do, is checked there.
package request

import "github.com/pdmesh/pdmesh/sim/fakevllm/model"

// Request is a parsed and checked request to one of the routes that generate.
type Request struct {
	API   API
	Chat  bool   // also of what vLLM makes a chat of
	Model string // "" when absent: the first served model

	Prompts    [][]int // token ids, one list per prompt
	Tokenize   func(dst []int, text string) []int
	PromptText []string // the text of prompts given as text, for echo; may be short

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
	HasStreamOptions    bool // stream_options is there and not null
	IncludeUsage        bool
	ContinuousUsage     bool
	Echo                bool
	Logprobs            *int // completions: number; chat: top_logprobs when logprobs is true
	PromptLogprobs      *int
	ReturnTokenIDs      bool
	RequestID           string
	CacheSalt           string
	KV                  []byte // raw kv_transfer_params, nil when absent or null
	truncate            *int

	temperature, topP, minP                              float64
	topK                                                 int
	presencePenalty, frequencyPenalty, repetitionPenalty float64
	BeamSearch                                           bool

	// Fields of the two APIs of agents that no chat has.
	Store, Background bool
	Previous          string // previous_response_id
	StopSequences     bool   // there are some
	Turn              int    // how many answers the conversation has
}
