package request

import (
	"errors"
	"fmt"
	"strings"

	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/jsonscan"
)

var (
	errString = errors.New("must be a string")
	errList   = errors.New("must be a list")
	errObject = errors.New("must be an object")
	errStop   = errors.New("must be a string or a list")
	errNull   = errors.New("must not be null")
)

// invalid returns the error of a value that vLLM refuses. A client gets it only if no
// engine can be asked for vLLM's message.
func invalid(param, message string) *openai.Error {
	return openai.BadRequest(param, "invalid "+param+": "+message)
}

// wrong returns the error of the field f.
func (r *Scanned) wrong(f Field, why error) *openai.Error {
	param := f.String()
	if r.home(f) != 0 {
		param = "sampling_params." + param
	}
	return invalid(param, why.Error())
}

// boolean reads a boolean field; an absent field is false.
func (r *Scanned) boolean(f Field) (bool, error) {
	raw := r.Raw(f)
	if raw == nil {
		return false, nil
	}
	if jsonscan.IsNull(raw) && f == FieldIgnoreEOS {
		return false, r.wrong(f, errNull)
	}
	v, err := jsonscan.LaxBool(raw)
	if err != nil {
		return false, r.wrong(f, err)
	}
	return v, nil
}

// integer reads an integer field; ok is false if it is absent or null.
func (r *Scanned) integer(f Field) (v int64, ok bool, err error) {
	raw := r.Raw(f)
	if raw == nil {
		return 0, false, nil
	}
	if jsonscan.IsNull(raw) && (f == FieldMinTokens || f == FieldPriority) {
		return 0, false, r.wrong(f, errNull)
	}
	if v, ok, err = jsonscan.LaxInt(raw); err != nil {
		return 0, false, r.wrong(f, err)
	}
	return v, ok, nil
}

// checkBoolean returns the error of a field that is not a boolean.
func (r *Scanned) checkBoolean(f Field) error {
	_, err := r.boolean(f)
	return err
}

// checkInteger returns the error of a field that is not an integer.
func (r *Scanned) checkInteger(f Field) error {
	_, _, err := r.integer(f)
	return err
}

// checkList returns the error of a field that is not a list.
func (r *Scanned) checkList(f Field) error {
	if raw := r.Raw(f); raw != nil && !jsonscan.IsNull(raw) && raw[0] != '[' {
		return r.wrong(f, errList)
	}
	return nil
}

// checkStop returns the error of stop strings that are neither a string nor a list.
func (r *Scanned) checkStop() error {
	if raw := r.Raw(FieldStop); raw != nil && !jsonscan.IsNull(raw) && raw[0] != '"' && raw[0] != '[' {
		return r.wrong(FieldStop, errStop)
	}
	return nil
}

// missing returns an error that names the required fields that are absent.
func (r *Scanned) missing(required ...Field) error {
	var names []string
	for _, f := range required {
		if r.Raw(f) == nil {
			names = append(names, f.String())
		}
	}
	if names == nil {
		return nil
	}
	return openai.BadRequest(names[0], "missing required fields: "+strings.Join(names, ", "))
}

// checkLimits checks the limits of generated tokens as vLLM does.
func checkLimits(maxTokens int64, hasMax bool, minTokens int64) error {
	switch {
	case hasMax && maxTokens < 1:
		return invalid("max_tokens", fmt.Sprintf("must be at least 1, got %d", maxTokens))
	case minTokens < 0:
		return invalid("min_tokens", fmt.Sprintf("must not be negative, got %d", minTokens))
	case hasMax && minTokens > maxTokens:
		return invalid("min_tokens", fmt.Sprintf("must not be greater than max_tokens (%d), got %d", maxTokens, minTokens))
	}
	return nil
}
