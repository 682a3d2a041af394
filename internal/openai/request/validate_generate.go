package request

import (
	"fmt"
	"strconv"

	"github.com/pdmesh/pdmesh/internal/alone"
	"github.com/pdmesh/pdmesh/internal/openai/jsonscan"
	"github.com/pdmesh/pdmesh/internal/openai/pydantic"
)

// samplingLoc is where pydantic finds what is wrong with sampling_params, which may be
// one of two things.
const samplingLoc = "body.sampling_params"

// noSampling is pydantic's complaint that a value is not the first of the two.
func noSampling(input string) string {
	return fmt.Sprintf("{'type': 'is_instance_of', 'loc': '%s', 'msg': 'Input should be an instance of SamplingParams', 'input': %s, 'ctx': {'class': 'SamplingParams'}}",
		samplingLoc, pydantic.PyQuote(input))
}

// readGenerate is validate for /inference/v1/generate. As everywhere, judged here is only
// what the edit of the prefill leg would hide from vLLM.
func readGenerate(r *Request) error {
	var sampling jsonscan.Member
	if r.samplingID == 0 {
		sampling, _ = jsonscan.Find(r.Body, r.body.open, FieldSamplingParams.String())
	}
	required := []Field{FieldTokenIDs}
	if r.samplingID == 0 && sampling.End == 0 {
		required = append(required, FieldSamplingParams)
	}
	if err := r.missing(required...); err != nil {
		return err
	}
	if raw := r.Raw(FieldTokenIDs); raw[0] != '[' {
		return r.wrong(FieldTokenIDs, pydantic.ErrListType)
	}
	if r.samplingID == 0 {
		shown := pydantic.Shown(r.Body[sampling.Value:sampling.End])
		return pydantic.Errors(samplingLoc, noSampling(shown), pydantic.ErrDictType.About(samplingLoc, shown))
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
		return pydantic.BadRequest("max_tokens", strconv.FormatInt(maxTokens, 10), fmt.Sprintf("max_tokens must be at least 1, got %d.", maxTokens))
	case minTokens < 0:
		return pydantic.BadRequest("", "", fmt.Sprintf("min_tokens must be greater than or equal to 0, got %d.", minTokens))
	case hasMax && minTokens > maxTokens:
		return pydantic.BadRequest("", "", fmt.Sprintf("min_tokens must be less than or equal to max_tokens=%d, got %d.", maxTokens, minTokens))
	}
	r.MaxTokens = maxTokens
	prompt := r.Raw(FieldPromptLogprobs)
	switch {
	case several && n > 1:
		r.Bypass = alone.N
	case prompt != nil && !jsonscan.IsNull(prompt):
		r.Bypass = alone.PromptLogprobs
	}
	return nil
}
