package connector

import (
	"strconv"
	"strings"

	"github.com/pdmesh/pdmesh/internal/alone"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/request"
)

// release is one of vLLM's, without its last number.
type release struct{ major, minor int }

func (r release) before(o release) bool {
	return r.major < o.major || r.major == o.major && r.minor < o.minor
}

// releaseOf reads an engine's version. ok is false for one that says nothing: none,
// or the 0.1.dev of a build that does not know its release. Such an engine is taken
// for a new one.
func releaseOf(in *instance.Instance) (r release, ok bool) {
	version := strings.TrimPrefix(in.Record.Version, "v")
	if strings.HasPrefix(version, "0.1.dev") {
		return release{}, false
	}
	major, rest, _ := strings.Cut(version, ".")
	end := 0
	for end < len(rest) && rest[end] >= '0' && rest[end] <= '9' {
		end++
	}
	var errMajor, errMinor error
	r.major, errMajor = strconv.Atoi(major)
	r.minor, errMinor = strconv.Atoi(rest[:end])
	return r, errMajor == nil && errMinor == nil
}

// older tells whether an instance is known to be older than a release; one that is
// not chosen yet is not.
func older(in *instance.Instance, than release) bool {
	if in == nil {
		return false
	}
	r, ok := releaseOf(in)
	return ok && r.before(than)
}

// tooOld is the reason of a pair in which an engine does not know kv_transfer_params
// on the route: /v1/responses and /v1/messages have them since vLLM 0.19.
func tooOld(k openai.Kind, p Pair) string {
	first := release{0, 19}
	if (k == openai.Responses || k == openai.Messages) && (older(p.Prefill, first) || older(p.Decode, first)) {
		return alone.EngineTooOld
	}
	return ""
}

// decodeEdit begins the leg of a decode instance. An answer on /v1/responses may be
// stored there: its id, which vLLM takes from the request, tells where (see
// openai.HolderOf).
func decodeEdit(r *request.Request, p Pair) *request.Edit {
	e := r.NewEdit()
	if r.Kind == openai.Responses && p.Decode != nil && r.MayBeStored() {
		e.Set(request.FieldRequestID, `"`+openai.ResponseID(p.Key, p.Decode.Address)+`"`)
	}
	return e
}

// prefillEdit is what every dialect does to the prefill leg (protocol rules R1
// and R1b): one token, not streamed, and finished by length, since several
// engines hand nothing over when the single token ends the answer. The token
// itself is thrown away. /v1/messages has no field that keeps its token from being
// the last: Unfit says where that does not matter. /inference/v1/generate has its
// limits in sampling_params, where Edit finds them. A prefill that is asked for the tokens
// of the prompt tells them in an answer that no client sees.
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
	case openai.Messages:
		e.Set(request.FieldMaxTokens, "1")
		e.Delete(request.FieldStopSequences)
	case openai.Generate:
		e.Set(request.FieldMaxTokens, "1")
		e.Set(request.FieldMinTokens, "1")
		e.Set(request.FieldIgnoreEOS, "true")
		e.Delete(request.FieldStreamOptions)
		e.Delete(request.FieldStop)
		e.Delete(request.FieldStopTokenIDs)
	case openai.Completion, openai.Chat, openai.Other:
		e.Set(request.FieldMaxTokens, "1")
		e.Replace(request.FieldMaxCompletionTokens, "1")
		e.Set(request.FieldMinTokens, "1")
		e.Delete(request.FieldMinCompletionTokens)
		e.Set(request.FieldIgnoreEOS, "true")
		e.Delete(request.FieldStreamOptions)
		e.Delete(request.FieldStop)
		e.Delete(request.FieldStopTokenIDs)
	}
}
