package openai_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/request"
	"github.com/pdmesh/pdmesh/sim/testkit/refusals"
)

// otherwise returns the reason why the proxy judges a recorded request in another way than vLLM, "" for none.
func otherwise(name string) string {
	switch name {
	case "NaN elsewhere", "NaN temperature", "Infinity temperature", "minus Infinity temperature", "NaN max_tokens", "NaN top_p",
		"NaN presence_penalty", "NaN repetition_penalty", "NaN min_p", "NaN chat temperature":
		return "NaN is no JSON; an engine is asked"
	case "UTF-8 with a mark", "UTF-16", "UTF-16 without a mark":
		return "JSON is UTF-8 without a mark (RFC 8259, 8.1)"
	case "deep":
		return "nesting is bounded"
	case "max_tokens 0 and unknown model":
		return "the model is checked later"
	case "two errors", "two errors and no messages":
		return "only the first error is reported; an engine reports all"
	case "route POST /inference/v1/generate":
		return "an engine without the option for the route does not look at the request"
	case "path in the value":
		return "no path of this machine is in a value of the client's"
	}
	return ""
}

// The proxy refuses only requests that vLLM refuses, with the same status. Fields that only an engine can
// check pass. The text of a refusal is the engine's (ask_test.go in package forward).
func TestRefusalsMatchVLLM(t *testing.T) {
	t.Parallel()
	refused := 0
	for _, c := range refusals.All(t) {
		kind := openai.KindOf(c.Path)
		if kind == openai.Other || c.Method != "POST" || c.Type() != "application/json" || otherwise(c.Name) != "" {
			continue
		}
		_, err := request.Parse(kind, c.Body())
		var e *openai.Error
		switch {
		case err == nil:
		case !errors.As(err, &e):
			t.Errorf("%s: %v", c.Name, err)
		case c.Status == 200:
			t.Errorf("%s: vLLM takes it, refused with %s", c.Name, e.JSON())
		case e.Status != c.Status:
			t.Errorf("%s: %s\ngot  %d %s\nwant %d %s", c.Name, c.Body(), e.Status, e.JSON(), c.Status, c.Answer)
		default:
			refused++
		}
	}
	assert.GreaterOrEqual(t, refused, 100, "only %d of the recorded requests were refused", refused)
	assert.Equal(t, answerTo(t, "text"), string(openai.NotJSON().JSON()), "of another Content-Type")
	assert.Equal(t, answerTo(t, "model other"), string(openai.UnknownModel("other", []string{refusals.Model}).JSON()),
		"of an unknown model")
}

func answerTo(t *testing.T, name string) string {
	t.Helper()
	for _, c := range refusals.All(t) {
		if c.Name == name {
			return c.Answer
		}
	}
	t.Fatalf("no case %q", name)
	return ""
}
