package request

import (
	"cmp"

	"github.com/pdmesh/pdmesh/internal/forward/bypass"
	"github.com/pdmesh/pdmesh/internal/openai/jsonscan"
)

// readGenerate is validate for /inference/v1/generate.
func readGenerate(r *Request) error {
	required := []Field{FieldTokenIDs}
	if r.samplingID == 0 && jsonscan.Value(r.Body, r.body.open, FieldSamplingParams.String()) == nil {
		required = append(required, FieldSamplingParams)
	}
	if err := r.missing(required...); err != nil {
		return err
	}
	if raw := r.Raw(FieldTokenIDs); raw[0] != '[' {
		return r.wrong(FieldTokenIDs, errList)
	}
	if r.samplingID == 0 {
		return invalid("sampling_params", errObject.Error())
	}
	return cmp.Or(readCommon(r), r.checkInteger(FieldPriority), readSampling(r))
}

// readSampling reads the fields of sampling_params that the legs change, and those that
// prevent P/D.
func readSampling(r *Request) error {
	maxTokens, hasMax, wrongMax := r.integer(FieldMaxTokens)
	minTokens, _, wrongMin := r.integer(FieldMinTokens)
	n, several, wrongN := r.integer(FieldN)
	if err := cmp.Or(
		wrongMax, wrongMin, r.checkBoolean(FieldIgnoreEOS), wrongN, r.checkStop(), r.checkList(FieldStopTokenIDs),
		checkLimits(maxTokens, hasMax, minTokens),
	); err != nil {
		return err
	}
	r.MaxTokens = maxTokens
	prompt := r.Raw(FieldPromptLogprobs)
	switch {
	case several && n > 1:
		r.Bypass = bypass.N
	case prompt != nil && !jsonscan.IsNull(prompt):
		r.Bypass = bypass.PromptLogprobs
	}
	return nil
}
