// Package refusals has what a real vLLM answered to wrong requests, and to some that
// look wrong and are not. It was recorded by record.py, next to it, from vLLM 0.32.0 that
// served one model as "tiny" with --max-model-len 2048.
package refusals

import (
	_ "embed"
	"encoding/json"
	"testing"

	"github.com/pdmesh/pdmesh/sim/testkit/require"
)

//go:embed vllm-0.32.0.json
var recorded []byte

// Case is one request and vLLM's answer.
type Case struct {
	Name        string  `json:"name"`
	Method      string  `json:"method"`
	Path        string  `json:"path"`
	ContentType *string `json:"content_type"` // nil: application/json
	Text        string  `json:"body"`
	Bytes       []byte  `json:"body_base64"` // instead of Text, where that is no text
	Status      int     `json:"status"`
	Answer      string  `json:"answer"` // of a refusal
}

// Body is the request's.
func (c *Case) Body() []byte {
	if c.Bytes != nil {
		return c.Bytes
	}
	return []byte(c.Text)
}

// Type is its Content-Type, "" for none.
func (c *Case) Type() string {
	if c.ContentType != nil {
		return *c.ContentType
	}
	return "application/json"
}

// Model is the name under which the recorded vLLM served its model.
const Model = "tiny"

// MaxModelLen is its --max-model-len.
const MaxModelLen = 2048

// All returns every case.
func All(t *testing.T) []Case {
	t.Helper()
	var list []Case
	require.NoError(t, json.Unmarshal(recorded, &list))
	return list
}
