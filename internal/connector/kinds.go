package connector

import (
	"slices"
	"strconv"
	"strings"

	"github.com/pdmesh/pdmesh/internal/forward/bypass"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/request"
)

// release is a release of vLLM, without its last number.
type release [2]int

// releaseOf reads an engine's version. ok is false if the version does not name a release:
// it is empty, or the 0.1.dev of a build that does not know its release. The caller then
// treats the engine as a new one.
func releaseOf(in *instance.Instance) (r release, ok bool) {
	version := strings.TrimPrefix(in.Record.Version, "v")
	if version == "" || strings.HasPrefix(version, "0.1.dev") {
		return release{}, false
	}
	major, rest, _ := strings.Cut(version, ".")
	minor := strings.TrimSuffix(rest, strings.TrimLeft(rest, "0123456789"))
	var errMajor, errMinor error
	r[0], errMajor = strconv.Atoi(major)
	r[1], errMinor = strconv.Atoi(minor)
	return r, errMajor == nil && errMinor == nil
}

// older reports whether an instance is known to be older than a release. It is false for
// nil, an instance that is not chosen yet.
func older(in *instance.Instance, than release) bool {
	if in == nil {
		return false
	}
	r, ok := releaseOf(in)
	return ok && slices.Compare(r[:], than[:]) < 0
}

// TakesPromptIDs reports whether an engine computes a chat's prompt from prompt_token_ids in
// kv_transfer_params, as vLLM does since 0.31 (vllm#48145). Older ones ignore them.
func TakesPromptIDs(in *instance.Instance) bool { return !older(in, release{0, 31}) }

// tooOld returns the reason why a pair cannot serve a route because one of its engines does
// not know kv_transfer_params there: /v1/responses and /v1/messages have them since vLLM 0.19.
func tooOld(k openai.Kind, p Pair) string {
	first := release{0, 19}
	if (k == openai.Responses || k == openai.Messages) && (older(p.Prefill, first) || older(p.Decode, first)) {
		return bypass.EngineTooOld
	}
	return ""
}

// TruncatesApart reports whether the engines of a pair may truncate the prompt differently. Before 0.32, vLLM
// leaves space for max_tokens, which is 1 on the prefill leg.
func TruncatesApart(r *request.Request, p Pair) bool {
	first := release{0, 32}
	return r.MayTruncate(p.Prefill.Record.MaxModelLen) && (older(p.Prefill, first) || older(p.Decode, first))
}

// decodeEdit begins the leg of a decode instance. The instance may store an answer on /v1/responses. vLLM
// takes the id of the answer from the request, so the id set here names the instance (see openai.MayHold).
func decodeEdit(r *request.Request, p Pair) *request.Edit {
	e := r.NewEdit()
	if p.AnswerIDs {
		e.Set(request.FieldReturnTokenIDs, "true")
	}
	if r.Kind == openai.Responses && p.Decode != nil && r.MayBeStored() {
		e.Set(request.FieldRequestID, `"`+openai.ResponseID(p.Key, p.Decode.Address)+`"`)
	}
	return e
}

// needsLength is the Unfit of dialects whose prefill offers a KV transfer only if it ends by length.
func needsLength(k openai.Kind, p Pair) string {
	if k == openai.Messages {
		return bypass.MessagesNeedLength
	}
	return tooOld(k, p)
}

// prefillEdit makes the changes that the prefill leg needs in every dialect: one token, no stream, and an
// end by length. Several connectors transfer nothing if prefill ends otherwise: vLLM's Mooncake and MoRI-IO
// connectors (also in 0.33), NIXL before vLLM 0.21, and vllm-ascend's connector (also in 0.26.0rc1). vLLM
// checks stop conditions before the length. Therefore min_tokens is 1, which forbids stop tokens at the
// first token, ignore_eos is set, and stop and stop_token_ids are deleted. The proxy drops the token.
//
// vLLM answers 400 if min_tokens is greater than max_tokens, and to stream_options without stream.
// /v1/messages has no field that prevents an end by a stop token; Unfit refuses it in the dialects
// that need one. /inference/v1/generate has these fields in sampling_params, where Edit finds them.
// With return_token_ids, prefill's answer has the tokens of the prompt; no client sees that answer.
func prefillEdit(e *request.Edit, p Pair) {
	e.Set(request.FieldStream, "false")
	if p.TokenIDs {
		e.Set(request.FieldReturnTokenIDs, "true")
	}
	switch e.Kind() {
	case openai.Responses:
		e.Set(request.FieldMaxOutputTokens, "1")
		e.Set(request.FieldIgnoreEOS, "true")
		e.Set(request.FieldStore, "false")
		e.Delete(request.FieldBackground)
		e.Delete(request.FieldMinTokens)
		e.Delete(request.FieldStop)
		e.Delete(request.FieldStopTokenIDs)
	case openai.Messages:
		e.Set(request.FieldMaxTokens, "1")
		e.Delete(request.FieldStopSequences)
	case openai.Completion, openai.Chat, openai.Generate, openai.Other:
		e.Set(request.FieldMaxTokens, "1")
		if e.Kind() != openai.Generate {
			e.Replace(request.FieldMaxCompletionTokens, "1")
			e.Delete(request.FieldMinCompletionTokens)
		}
		e.Set(request.FieldMinTokens, "1")
		e.Set(request.FieldIgnoreEOS, "true")
		e.Delete(request.FieldStreamOptions)
		e.Delete(request.FieldStop)
		e.Delete(request.FieldStopTokenIDs)
	}
}
