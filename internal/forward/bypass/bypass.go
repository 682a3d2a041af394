// Package bypass names the reasons why a decode instance serves a request without a prefill.
// They are labels of metrics and values in the access log and in the header X-PD-Decode-Only.
package bypass

// The reasons.
const (
	// The request cannot be split into prefill and decode.
	SeveralPrompts = "several_prompts"
	N              = "n"
	BestOf         = "best_of"
	BeamSearch     = "beam_search"
	Echo           = "echo"
	PromptLogprobs = "prompt_logprobs"
	EngineTools    = "engine_tools"
	Background     = "background"
	StoredResponse = "stored_response"
	Route          = "route"

	// A prefill of one token may be refused, or transfer nothing.
	ForcedTool         = "forced_tool"
	ThinkingBudget     = "thinking_budget"
	MessagesNeedLength = "messages_need_length"
	EngineTooOld       = "engine_too_old"
	ResponsesOwnID     = "responses_own_id"
	RanksDiffer        = "ranks_differ"
	NotHeard           = "not_heard"
	NotNotified        = "not_notified"

	// There should have been a prefill.
	NoTransfer    = "no_handover"
	LeaseEnded    = "lease_ended"
	NoPrefill     = "no_prefill"
	PrefillFailed = "prefill_failed"
	TransferLost  = "transfer_lost"

	// The remaining instances cannot be paired.
	VersionMismatch   = "version_mismatch"
	BlockMismatch     = "block_mismatch"
	ConnectorMismatch = "connector_mismatch"
	SameInstance      = "same_instance"

	// Decode-only is expected to be faster, or is configured.
	SmallUncached = "small_uncached"
	PrefillQueue  = "prefill_queue"
	Explore       = "explore"
	Never         = "never"
)

// Reason is a name and its explanation for operators.
type Reason struct{ Name, Text string }

// Reasons returns all reasons.
func Reasons() []Reason {
	return []Reason{
		{SeveralPrompts, "several prompts in one request"},
		{N, "several answers to one prompt"},
		{BestOf, "the best of several answers"},
		{BeamSearch, "beam search"},
		{Echo, "the prompt is to be echoed"},
		{PromptLogprobs, "logprobs of the prompt are requested"},
		{EngineTools, "the engine may run a tool, and would use the KV transfer again"},
		{Background, "a background response"},
		{StoredResponse, "it continues a stored response"},
		{Route, "no engine transfers KV caches on that route"},
		{ForcedTool, "a forced tool call cannot be cut after one token"},
		{ThinkingBudget, "a thinking budget cannot be cut after one token"},
		{MessagesNeedLength, "these engines may transfer nothing on /v1/messages"},
		{EngineTooOld, "an engine is too old for a KV transfer of that request"},
		{ResponsesOwnID, "these engines cannot match the legs of a pair on /v1/responses"},
		{RanksDiffer, "prefill and decode have different numbers of ranks"},
		{NotHeard, "prefill's notifications cannot be received"},
		{NotNotified, "prefill's notifications do not arrive"},
		{NoTransfer, "prefill offered no KV transfer"},
		{LeaseEnded, "decode's queue is longer than the KV lease"},
		{NoPrefill, "no prefill instance was available"},
		{PrefillFailed, "every prefill instance failed"},
		{TransferLost, "decode failed with KV transfers of earlier attempts"},
		{VersionMismatch, "no prefill and decode instance run the same vLLM release"},
		{BlockMismatch, "no prefill and decode instance have KV blocks of the same size"},
		{ConnectorMismatch, "no prefill and decode instance use the same connector"},
		{SameInstance, "prefill and decode would be the same instance"},
		{SmallUncached, "decode computes it faster than a prefill and a KV transfer"},
		{PrefillQueue, "prefill's queue takes longer than decode"},
		{Explore, "occasional measurement of how long decode takes"},
		{Never, "--disaggregate never"},
	}
}

// Chosen reports whether a reason is a choice, not a problem: prefill could have served.
func Chosen(name string) bool {
	switch name {
	case SmallUncached, PrefillQueue, Explore, Never:
		return true
	}
	return false
}

// Text returns the explanation of a reason; an unknown name is returned as it is.
func Text(name string) string {
	for _, r := range Reasons() {
		if r.Name == name {
			return r.Text
		}
	}
	return name
}
