// Package refusals has the answers of a real vLLM to invalid requests, and to some valid
// ones that look invalid. record.py in this folder recorded them from vLLM 0.32.0, which
// served one model as "tiny" with --max-model-len 2048.
package refusals

import (
	_ "embed"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
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
	Bytes       []byte  `json:"body_base64"` // replaces Text if the body is not text
	Status      int     `json:"status"`
	Answer      string  `json:"answer"` // of a refusal
}

// Body returns the body of the request.
func (c *Case) Body() []byte {
	if c.Bytes != nil {
		return c.Bytes
	}
	return []byte(c.Text)
}

// Type returns the Content-Type of the request, "" for none.
func (c *Case) Type() string {
	if c.ContentType != nil {
		return *c.ContentType
	}
	return "application/json"
}

// Model is the name under which the recorded vLLM served its model.
const Model = "tiny"

// MaxModelLen is the --max-model-len of the recorded vLLM.
const MaxModelLen = 2048

// All returns every case.
func All(t *testing.T) []Case {
	t.Helper()
	var list []Case
	require.NoError(t, json.Unmarshal(recorded, &list))
	return list
}
