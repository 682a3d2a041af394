package request

import (
	"bytes"

	"github.com/pdmesh/pdmesh/internal/openai/jsonscan"
)

// Field is a top-level field of a completion request that the proxy reads or
// edits.
type Field uint8

// The fields, named as in the API.
const (
	fieldNone Field = iota
	FieldModel
	FieldStream
	FieldStreamOptions
	FieldMaxTokens
	FieldMaxCompletionTokens
	FieldMinTokens
	FieldMinCompletionTokens
	FieldIgnoreEOS
	FieldStop
	FieldStopTokenIDs
	FieldN
	FieldBestOf
	FieldUseBeamSearch
	FieldEcho
	FieldPromptLogprobs
	FieldToolChoice
	FieldPrompt
	FieldPromptEmbeds
	FieldMessages
	FieldInput
	FieldMaxOutputTokens
	FieldStopSequences
	FieldStore
	FieldBackground
	FieldPreviousResponseID
	FieldThinking
	FieldTokenIDs
	FieldRequestID
	FieldTools
	FieldSystem
	FieldInstructions
	FieldCacheSalt
	FieldReturnTokenIDs
	FieldPromptCacheKey
	FieldSessionID
	FieldTruncatePrompt
	FieldTruncation
	FieldPriority
	FieldKVTransferParams
	FieldECTransferParams
	FieldDisaggSpec
	FieldBootstrap // any name that begins with "bootstrap_"
	FieldSamplingParams
	fieldExtraArgs
	fieldVLLMXargs
	numFields
)

var fieldNames = [numFields]string{ //nolint:gochecknoglobals // a constant table
	FieldModel:               "model",
	FieldStream:              "stream",
	FieldStreamOptions:       "stream_options",
	FieldMaxTokens:           "max_tokens",
	FieldMaxCompletionTokens: "max_completion_tokens",
	FieldMinTokens:           "min_tokens",
	FieldMinCompletionTokens: "min_completion_tokens",
	FieldIgnoreEOS:           "ignore_eos",
	FieldStop:                "stop",
	FieldStopTokenIDs:        "stop_token_ids",
	FieldN:                   "n",
	FieldBestOf:              "best_of",
	FieldUseBeamSearch:       "use_beam_search",
	FieldEcho:                "echo",
	FieldPromptLogprobs:      "prompt_logprobs",
	FieldToolChoice:          "tool_choice",
	FieldPrompt:              "prompt",
	FieldPromptEmbeds:        "prompt_embeds",
	FieldMessages:            "messages",
	FieldInput:               "input",
	FieldMaxOutputTokens:     "max_output_tokens",
	FieldStopSequences:       "stop_sequences",
	FieldStore:               "store",
	FieldBackground:          "background",
	FieldPreviousResponseID:  "previous_response_id",
	FieldThinking:            "thinking",
	FieldTokenIDs:            "token_ids",
	FieldRequestID:           "request_id",
	FieldTools:               "tools",
	FieldSystem:              "system",
	FieldInstructions:        "instructions",
	FieldCacheSalt:           "cache_salt",
	FieldReturnTokenIDs:      "return_token_ids",
	FieldPromptCacheKey:      "prompt_cache_key",
	FieldSessionID:           "session_id",
	FieldTruncatePrompt:      "truncate_prompt_tokens",
	FieldTruncation:          "truncation",
	FieldPriority:            "priority",
	FieldKVTransferParams:    "kv_transfer_params",
	FieldECTransferParams:    "ec_transfer_params",
	FieldDisaggSpec:          "disagg_spec",
	FieldBootstrap:           bootstrapPrefix,
	FieldSamplingParams:      "sampling_params",
	fieldExtraArgs:           "extra_args",
	fieldVLLMXargs:           "vllm_xargs",
}

func (f Field) String() string { return fieldNames[f] }

// bootstrapPrefix is the prefix of the fields by which SGLang's engines find each other.
const bootstrapPrefix = "bootstrap_"

// steers reports whether a field controls transfers inside the fleet. Such fields make engines
// open connections, so those of a client are always removed.
func (f Field) steers() bool {
	return f >= FieldKVTransferParams && f <= FieldBootstrap
}

// container reports whether a field can contain control fields.
func (f Field) container() bool { return f >= FieldSamplingParams && f <= fieldVLLMXargs }

// sampling reports whether /inference/v1/generate has the field inside its object
// sampling_params.
func (f Field) sampling() bool {
	switch f {
	case FieldMaxTokens, FieldMinTokens, FieldIgnoreEOS, FieldStop, FieldStopTokenIDs, FieldN, FieldPromptLogprobs:
		return true
	}
	return false
}

// fieldsByName has the fields by their names.
var fieldsByName = func() map[string]Field { //nolint:gochecknoglobals // a constant table
	byName := make(map[string]Field, numFields)
	for f, name := range fieldNames {
		byName[name] = Field(f)
	}
	return byName
}()

// fieldOf returns the field of a key; tok is the key with its quotes.
func fieldOf(tok []byte) Field {
	name := jsonscan.Unquote(tok)
	if f, ok := fieldsByName[string(name)]; ok { // the conversion in an index does not allocate
		return f
	}
	if bytes.HasPrefix(name, []byte(bootstrapPrefix)) {
		return FieldBootstrap
	}
	return fieldNone
}
