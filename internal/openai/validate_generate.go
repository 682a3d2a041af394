package openai

import (
	"fmt"
	"strconv"

	"github.com/pdmesh/pdmesh/internal/alone"
)

// samplingLoc is where pydantic finds what is wrong with sampling_params, which may be
// one of two things.
const samplingLoc = "body.sampling_params"

var errDictType = &complaint{"dict_type", "Input should be a valid dictionary"}

// noSampling is pydantic's complaint that a value is not the first of the two.
func noSampling(input string) string {
	return fmt.Sprintf("{'type': 'is_instance_of', 'loc': '%s', 'msg': 'Input should be an instance of SamplingParams', 'input': %s, 'ctx': {'class': 'SamplingParams'}}",
		samplingLoc, pyQuote(input))
}

// readGenerate is validate for /inference/v1/generate. As everywhere, judged here is only
// what the edit of the prefill leg would hide from vLLM.
func readGenerate(r *Request) error {
	var sampling member
	if r.samplingID == 0 {
		sampling, _ = findMember(r.Body, r.body.open, FieldSamplingParams.String())
	}
	required := []Field{FieldTokenIDs}
	if r.samplingID == 0 && sampling.end == 0 {
		required = append(required, FieldSamplingParams)
	}
	if err := r.missing(required...); err != nil {
		return err
	}
	if raw := r.Raw(FieldTokenIDs); raw[0] != '[' {
		return r.wrong(FieldTokenIDs, errListType)
	}
	if r.samplingID == 0 {
		shown := inputOf(r.Body[sampling.val:sampling.end])
		return pydantic(samplingLoc, noSampling(shown), errDictType.about(samplingLoc, shown))
	}
	if err := readCommon(r); err != nil {
		return err
	}
	if _, _, err := r.integer(FieldPriority); err != nil {
		return err
	}
	return readSampling(r)
}

// readSampling reads what is edited in sampling_params, and what keeps the request
// from going through a pair.
func readSampling(r *Request) error {
	maxTokens, hasMax, err := r.integer(FieldMaxTokens)
	if err != nil {
		return err
	}
	minTokens, _, err := r.integer(FieldMinTokens)
	if err != nil {
		return err
	}
	if _, err := r.boolean(FieldIgnoreEOS); err != nil {
		return err
	}
	n, several, err := r.integer(FieldN)
	if err != nil {
		return err
	}
	if err := readStop(r); err != nil {
		return err
	}
	switch {
	case hasMax && maxTokens < 1:
		return badRequest("max_tokens", strconv.FormatInt(maxTokens, 10), fmt.Sprintf("max_tokens must be at least 1, got %d.", maxTokens))
	case minTokens < 0:
		return badRequest("", "", fmt.Sprintf("min_tokens must be greater than or equal to 0, got %d.", minTokens))
	case hasMax && minTokens > maxTokens:
		return badRequest("", "", fmt.Sprintf("min_tokens must be less than or equal to max_tokens=%d, got %d.", maxTokens, minTokens))
	}
	r.MaxTokens = maxTokens
	prompt := r.Raw(FieldPromptLogprobs)
	switch {
	case several && n > 1:
		r.Bypass = alone.N
	case prompt != nil && !isNull(prompt):
		r.Bypass = alone.PromptLogprobs
	}
	return nil
}
