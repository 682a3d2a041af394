// Package alone names the reasons for which one decode instance serves a request without
// a prefill. Whoever decides that uses a name of these: it is in the metric, in the
// access log and in the header X-PD-Alone.
package alone

// The reasons.
const (
	// The request cannot be shared out.
	SeveralPrompts = "several_prompts"
	N              = "n"
	BestOf         = "best_of"
	BeamSearch     = "beam_search"
	Echo           = "echo"
	PromptLogprobs = "prompt_logprobs"
	Background     = "background"
	StoredResponse = "stored_response"
	Route          = "route"

	// A prefill of one token may be refused, or hand nothing over.
	ForcedTool         = "forced_tool"
	ThinkingBudget     = "thinking_budget"
	MessagesNeedLength = "messages_need_length"
	EngineTooOld       = "engine_too_old"
	ResponsesOwnID     = "responses_own_id"
	RanksDiffer        = "ranks_differ"
	NotHeard           = "not_heard"
	NotNotified        = "not_notified"

	// A prefill should have been.
	NoHandover    = "no_handover"
	LeaseEnded    = "lease_ended"
	NoPrefill     = "no_prefill"
	PrefillFailed = "prefill_failed"

	// Who is left could serve in no pair.
	VersionMismatch   = "version_mismatch"
	BlockMismatch     = "block_mismatch"
	ConnectorMismatch = "connector_mismatch"
	SameInstance      = "same_instance"

	// Decode alone should be the better way, or is wanted.
	SmallUncached = "small_uncached"
	PrefillQueue  = "prefill_queue"
	Explore       = "explore"
	Never         = "never"
)

// Reason is a name and what it means to an operator.
type Reason struct{ Name, Words string }

// Reasons are all of them.
func Reasons() []Reason {
	return []Reason{
		{SeveralPrompts, "several prompts in one request"},
		{N, "several answers to one prompt"},
		{BestOf, "the best of several answers"},
		{BeamSearch, "beam search"},
		{Echo, "the prompt is to be echoed"},
		{PromptLogprobs, "logprobs of the prompt are wanted"},
		{Background, "a response in the background"},
		{StoredResponse, "it goes on from a stored response"},
		{Route, "no engine hands over on that route"},
		{ForcedTool, "a forced tool call cannot be cut after one token"},
		{ThinkingBudget, "a thinking budget cannot be cut after one token"},
		{MessagesNeedLength, "these engines may hand nothing over on /v1/messages"},
		{EngineTooOld, "an engine is too old to hand over on that route"},
		{ResponsesOwnID, "the legs of these engines would not know each other on /v1/responses"},
		{RanksDiffer, "prefill and decode have not as many ranks"},
		{NotHeard, "prefill's notifications go to nobody who can be asked"},
		{NotNotified, "prefill's notifications do not arrive"},
		{NoHandover, "prefill has handed nothing over"},
		{LeaseEnded, "decode's queue is longer than the KV lease"},
		{NoPrefill, "no prefill instance could be used"},
		{PrefillFailed, "every prefill instance has failed"},
		{VersionMismatch, "no prefill and decode instance are of one vLLM release"},
		{BlockMismatch, "no prefill and decode instance have KV blocks of one size"},
		{ConnectorMismatch, "no prefill and decode instance speak one connector"},
		{SameInstance, "prefill and decode would be the same instance"},
		{SmallUncached, "decode computes it sooner than prefill would hand it over"},
		{PrefillQueue, "prefill's queue is longer than decode takes"},
		{Explore, "now and then, to know how long decode takes"},
		{Never, "--disaggregate never"},
	}
}

// Chosen reports of a reason that nothing is wrong with: prefill could have served.
func Chosen(name string) bool {
	switch name {
	case SmallUncached, PrefillQueue, Explore, Never:
		return true
	}
	return false
}

// Words says what a reason means, the name itself of one that is not known.
func Words(name string) string {
	for _, r := range Reasons() {
		if r.Name == name {
			return r.Words
		}
	}
	return name
}
