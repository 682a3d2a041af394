package continuation

import (
	"strconv"

	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/jsonscan"
	"github.com/pdmesh/pdmesh/internal/openai/request"
)

// The ways in which an answer is continued, for metrics.
const (
	HowPrompt = "prompt"    // a completion whose prompt is the ids
	HowChat   = "chat"      // a chat with the ids in kv_transfer_params
	HowReplay = "replay"    // the same request again; the client gets the part that it does not have
	HowProxy  = "completed" // only the end was missing
)

// Hows lists the ways.
func Hows() []string { return []string{HowPrompt, HowChat, HowReplay, HowProxy} }

// The reasons why an answer is not continued, for metrics.
const (
	ReasonLimit     = "limit"      // it was continued the maximum number of times
	ReasonDeadline  = "deadline"   // no instance continued it in time
	ReasonBudget    = "budget"     // the retry budget is spent
	ReasonFailed    = "failed"     // no instance could continue it
	ReasonAPI       = "api"        // engines report no token ids on this route
	ReasonChoices   = "choices"    // several choices or prompts, beam search, echo, prompt_logprobs
	ReasonEmbeds    = "embeddings" // the prompt does not consist of tokens
	ReasonSeed      = "seed"       // a seed with a temperature above 0
	ReasonThinking  = "thinking"   // a thinking budget
	ReasonPenalty   = "penalty"    // a penalty, bad_words or repetition_detection, which apply to the tokens of the answer only
	ReasonStructure = "structured" // structured output, or a forced tool call
	ReasonCustom    = "custom"     // logits processors
	ReasonMedia     = "media"      // images, video, or audio
	ReasonToolCall  = "tool_call"  // a tool call may be open
	ReasonOldEngine = "old_engine" // a chat, if the engine or all others are older than vLLM 0.31
	ReasonNoIDs     = "no_ids"     // the engine reported no token ids
	ReasonMemory    = "memory"     // no memory for the token ids
	ReasonSeam      = "seam"       // no token ids match the client's text
	ReasonText      = "detokenize" // no engine turned the token ids into text
	ReasonRefused   = "refused"    // the instance is not the cause of the failure
	ReasonEnded     = "ended"      // the request has ended
)

// Reasons lists the reasons.
func Reasons() []string {
	return []string{
		ReasonLimit, ReasonDeadline, ReasonBudget, ReasonFailed, ReasonAPI, ReasonChoices, ReasonEmbeds, ReasonSeed, ReasonThinking,
		ReasonPenalty, ReasonStructure, ReasonCustom, ReasonMedia, ReasonToolCall, ReasonOldEngine, ReasonNoIDs, ReasonMemory, ReasonSeam, ReasonText, ReasonRefused,
	}
}

// Detokenize turns token ids, as a JSON list, into their text.
type Detokenize func(ids []byte) (string, error)

// Next is the continuation of an answer.
type Next struct {
	How string
	// Request is the request of the next legs.
	Request *request.Request
	// Events complete the answer without another leg; nil otherwise.
	Events []byte
}

// defaultMaxTokens is vLLM's limit for a completion without max_tokens.
const defaultMaxTokens = 16

// Refused returns why the answer cannot be continued, as far as that is known without an
// engine; "" if it can.
func (a *Answer) Refused() string {
	why, _ := a.refused()
	return why
}

// Ended reports whether only the end of the answer is missing, which needs no engine.
func (a *Answer) Ended() bool {
	return a.finished && a.created != nil && (a.why == "" || !a.req.IncludeUsage || a.usage)
}

// refused returns why the answer cannot be continued, and whether it can only be replayed.
func (a *Answer) refused() (why string, replay bool) {
	switch {
	case a.Ended():
		return "", false
	case a.why != "" && a.why != ReasonNoIDs:
		return a.why, false // the request's body may be released
	case a.moves == 0:
		return ReasonLimit, false
	}
	f := a.parameters()
	switch {
	case f.never != "":
		return f.never, false
	case a.named():
		why = ReasonAPI
	case len(a.ids.list) == 0 || len(a.prompt.list) == 0:
		why = ReasonNoIDs
	case a.leg.replays && !a.replayed(&a.delivered):
		why = ReasonSeam // the ids are not those of the client's text
	case a.channel == toolCalls, f.single && len(a.delivered.calls) > 0: // the next engine would not omit a second call
		why = ReasonToolCall
	case f.forced:
		why = ReasonStructure
	case a.old && a.req.Kind == openai.Chat:
		why = ReasonOldEngine
	case a.req.Media():
		why = ReasonMedia
	default:
		why = f.why
	}
	if why != "" && a.replayable(&f) {
		return "", true
	}
	return why, false
}

// MayMove reports whether the answer could be continued now if its leg ended. It changes nothing.
func (a *Answer) MayMove(detokenize Detokenize) bool {
	why, replay := a.refused()
	if why != "" || replay || a.finished {
		return replay && !a.finished
	}
	_, _, _, why = a.seam(detokenize)
	return why == ""
}

// Next returns how the answer is continued after its leg was lost. If it is not, why is one of Reasons.
func (a *Answer) Next(detokenize Detokenize) (next *Next, why string) {
	why, replay := a.refused()
	if why != "" {
		return nil, why
	}
	if replay {
		return a.replay(), ""
	}
	if a.finished {
		return &Next{How: HowProxy, Events: a.ending("", false)}, ""
	}
	n, history, rest, why := a.seam(detokenize)
	if f := a.parameters(); why == ReasonSeam && a.replayable(&f) {
		return a.replay(), ""
	}
	if why != "" {
		return nil, why
	}
	limit := a.limit()
	if limit > 0 && int64(n) >= limit {
		return &Next{How: HowProxy, Events: a.ending(rest, true)}, ""
	}
	opening, err := detokenize(jsonIDs(a.prompt.list[:min(len(a.prompt.list), openingIDs)]))
	if err != nil {
		return nil, ReasonText
	}
	a.ids.list = a.ids.list[:n]
	body := a.body(n, limit)
	req, err := request.Parse(a.req.Kind, body)
	if err != nil {
		return nil, ReasonRefused
	}
	req.KeepPriority, req.Served = a.req.KeepPriority, a.req.Served
	next = &Next{How: HowPrompt, Request: req}
	if a.req.Kind == openai.Chat {
		next.How = HowChat
		req.PromptTokenIDs = a.history([]byte{'['}, n)
	}
	a.moves--
	a.promptTokens, a.mark = len(a.prompt.list), min(a.mark, n)
	a.leg = legState{
		continues: true, rest: rest, history: history, opening: opening, ids: n, calls: len(a.delivered.calls), offset: a.offset,
	}
	return next, ""
}

// limit returns the maximum number of tokens of the answer, 0 if only the engine knows it.
func (a *Answer) limit() int64 {
	if a.req.Kind == openai.Completion && a.req.Raw(request.FieldMaxTokens) == nil {
		return defaultMaxTokens
	}
	return a.req.MaxTokens
}

// history appends the ids of the prompt and the first n of the answer, as the rest of a JSON list.
func (a *Answer) history(out []byte, n int) []byte {
	return append(a.ids.appendJSON(a.prompt.appendJSON(out, len(a.prompt.list)), n), ']')
}

// body returns the body of the next request: the client's with another prompt, and with the
// limits that remain after n tokens.
func (a *Answer) body(n int, limit int64) []byte {
	out := append(make([]byte, 0, len(a.req.Body)+8*(len(a.prompt.list)+n)+128), `{"stream":true`...)
	minTokens := int64(0)
	_ = jsonscan.EachMember(a.req.Body, 0, func(key []byte, m jsonscan.Member) { // was scanned before
		value := a.req.Body[m.Value:m.End]
		switch name := string(key); {
		case name == "min_tokens":
			minTokens, _, _ = jsonscan.LaxInt(value)
		case name == "stream", name == "return_token_ids", name == "max_tokens", name == "max_completion_tokens", name == "min_completion_tokens", name == "truncate_prompt_tokens":
		case name == "prompt" && a.req.Kind == openai.Completion:
		default:
			out = append(append(append(append(out, ','), a.req.Body[m.Key:m.KeyEnd]...), ':'), value...)
		}
	})
	if a.req.Kind == openai.Completion {
		out = a.history(append(out, `,"prompt":[`...), n)
	}
	switch {
	case limit > 0:
		out = strconv.AppendInt(append(out, `,"max_tokens":`...), limit-int64(n), 10)
	case a.req.Kind == openai.Completion:
		out = append(out, `,"max_tokens":null`...)
	}
	if minTokens > int64(n) {
		out = strconv.AppendInt(append(out, `,"min_tokens":`...), minTokens-int64(n), 10)
	}
	return append(out, '}')
}

// parameters reads the sampling parameters of the request.
func (a *Answer) parameters() (f parameters) {
	_ = jsonscan.EachMember(a.req.Body, 0, func(name []byte, m jsonscan.Member) { // was scanned before
		f.read(string(name), a.req.Body[m.Value:m.End])
	})
	if f.seed && !f.greedy {
		f.never = ReasonSeed
	}
	return f
}

// parameters has the facts about a request's sampling parameters that matter here.
type parameters struct {
	never  string // why the answer cannot be continued at all
	why    string // why it can only be replayed
	seed   bool
	greedy bool // each token is the most probable one
	forced bool // a tool call is forced
	single bool // at most one tool call
}

// read reads one member of the request. In vLLM, the last of several duplicates counts;
// here each does, which refuses too much.
func (f *parameters) read(name string, value []byte) {
	set := jsonscan.Truthy(value)
	switch name {
	case "temperature":
		f.greedy = f.greedy || !set && !jsonscan.IsNull(value)
	case "top_k":
		f.greedy = f.greedy || string(value) == "1"
	case "seed":
		f.seed = !jsonscan.IsNull(value)
	case "tool_choice":
		f.forced = len(value) > 0 && (value[0] == '{' || string(value) == `"required"`)
	case "parallel_tool_calls":
		f.single = !set && !jsonscan.IsNull(value)
	case "presence_penalty", "frequency_penalty", "bad_words", "repetition_detection":
		refuse(&f.why, set, ReasonPenalty)
	case "thinking_token_budget", "thinking":
		refuse(&f.never, !jsonscan.IsNull(value) && string(jsonscan.FindText(value, 0, "type")) != "disabled", ReasonThinking)
	case "tools":
		jsonscan.EachObject(value, func(tool []byte) {
			kind := string(jsonscan.Value(tool, 0, "type"))
			refuse(&f.never, kind != "" && kind != `"function"` && kind != `"custom"`, ReasonCustom) // run by the engine: must not run twice
		})
	case "prompt_embeds":
		refuse(&f.never, !jsonscan.IsNull(value), ReasonEmbeds)
	case "response_format":
		kind := string(jsonscan.Value(value, 0, "type"))
		refuse(&f.why, kind != "" && kind != `"text"`, ReasonStructure)
	case "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "structural_tag":
		refuse(&f.why, !jsonscan.IsNull(value), ReasonStructure)
	case "logits_processors", "vllm_xargs":
		refuse(&f.why, set, ReasonCustom)
	}
}

// refuse sets a reason that is not set yet.
func refuse(to *string, yes bool, why string) {
	if yes && *to == "" {
		*to = why
	}
}
