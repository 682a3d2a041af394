package openai

import "unicode/utf8"

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
	FieldKVTransferParams
	FieldDisaggSpec
	FieldBootstrapHost
	FieldBootstrapPort
	FieldBootstrapRoom
	fieldSamplingParams
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
	FieldKVTransferParams:    "kv_transfer_params",
	FieldDisaggSpec:          "disagg_spec",
	FieldBootstrapHost:       "bootstrap_host",
	FieldBootstrapPort:       "bootstrap_port",
	FieldBootstrapRoom:       "bootstrap_room",
	fieldSamplingParams:      "sampling_params",
	fieldExtraArgs:           "extra_args",
	fieldVLLMXargs:           "vllm_xargs",
}

func (f Field) String() string { return fieldNames[f] }

// control tells the fields that steer KV transfer inside the fleet. They make
// engines open connections, so a client's own are always taken out.
func (f Field) control() bool {
	return f >= FieldKVTransferParams && f <= FieldBootstrapRoom
}

// container tells the fields inside which control fields can hide.
func (f Field) container() bool { return f >= fieldSamplingParams && f <= fieldVLLMXargs }

// fieldOf finds the field of a key; tok is the key with its quotes.
func fieldOf(tok []byte) Field {
	switch string(unquote(tok)) { // the conversion in a switch does not allocate
	case "model":
		return FieldModel
	case "stream":
		return FieldStream
	case "stream_options":
		return FieldStreamOptions
	case "max_tokens":
		return FieldMaxTokens
	case "max_completion_tokens":
		return FieldMaxCompletionTokens
	case "min_tokens":
		return FieldMinTokens
	case "min_completion_tokens":
		return FieldMinCompletionTokens
	case "ignore_eos":
		return FieldIgnoreEOS
	case "stop":
		return FieldStop
	case "stop_token_ids":
		return FieldStopTokenIDs
	case "n":
		return FieldN
	case "best_of":
		return FieldBestOf
	case "use_beam_search":
		return FieldUseBeamSearch
	case "echo":
		return FieldEcho
	case "prompt_logprobs":
		return FieldPromptLogprobs
	case "tool_choice":
		return FieldToolChoice
	case "prompt":
		return FieldPrompt
	case "kv_transfer_params":
		return FieldKVTransferParams
	case "disagg_spec":
		return FieldDisaggSpec
	case "bootstrap_host":
		return FieldBootstrapHost
	case "bootstrap_port":
		return FieldBootstrapPort
	case "bootstrap_room":
		return FieldBootstrapRoom
	case "sampling_params":
		return fieldSamplingParams
	case "extra_args":
		return fieldExtraArgs
	case "vllm_xargs":
		return fieldVLLMXargs
	default:
		return fieldNone
	}
}

func appendRune(b []byte, r rune) []byte { return utf8.AppendRune(b, r) }
