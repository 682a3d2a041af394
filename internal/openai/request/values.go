package request

import (
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/jsonscan"
	"github.com/pdmesh/pdmesh/internal/openai/pydantic"
)

// wrong is the error of a value that vLLM would refuse.
func (r *Scanned) wrong(f Field, why ...*pydantic.Complaint) *openai.Error {
	if r.home(f) != 0 {
		return r.wrongSampling(f, why)
	}
	return pydantic.Invalid(f.String(), pydantic.Shown(r.Raw(f)), why...)
}

// wrongSampling is the error of a value inside sampling_params.
func (r *Scanned) wrongSampling(f Field, why []*pydantic.Complaint) *openai.Error {
	texts := []string{noSampling(pydantic.Shown(r.Body[r.sampling.open:]))}
	for _, c := range why {
		texts = append(texts, c.About(samplingLoc+"."+f.String(), pydantic.Shown(r.Raw(f))))
	}
	return pydantic.Errors(samplingLoc, texts...)
}

// boolean reads a field that is true or false; one that is absent is false.
func (r *Scanned) boolean(f Field) (bool, error) {
	raw := r.Raw(f)
	if raw == nil {
		return false, nil
	}
	if jsonscan.IsNull(raw) && f == FieldIgnoreEOS {
		return false, r.wrong(f, pydantic.ErrBoolType)
	}
	v, why := pydantic.Bool(raw)
	if why != nil {
		return false, r.wrong(f, why)
	}
	return v, nil
}

// integer reads a field that is a whole number; ok is false for one that is absent or null.
func (r *Scanned) integer(f Field) (v int64, ok bool, err error) {
	raw := r.Raw(f)
	if raw == nil {
		return 0, false, nil
	}
	if jsonscan.IsNull(raw) && (f == FieldMinTokens || f == FieldPriority) {
		return 0, false, r.wrong(f, pydantic.ErrIntType)
	}
	v, ok, why := pydantic.Int(raw)
	if why != nil {
		return 0, false, r.wrong(f, why)
	}
	return v, ok, nil
}

// missing tells of all the fields that are required and not there.
func (r *Scanned) missing(required ...Field) error {
	var texts []string
	var first string
	for _, f := range required {
		if r.Raw(f) != nil {
			continue
		}
		if first == "" {
			first = "body." + f.String()
		}
		texts = append(texts, pydantic.ErrMissing.About("body."+f.String(), pydantic.Shown(r.Body[r.body.open:])))
	}
	if texts == nil {
		return nil
	}
	return pydantic.Errors(first, texts...)
}
