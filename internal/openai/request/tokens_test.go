package request_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/request"
)

func TestTokensTell(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]bool{
		`{"messages":[],"prompt":"p"}`:                  true,
		`{"messages":[],"prompt":"p","cache_salt":"s"}`: false,
	} {
		for kind, returned := range map[openai.Kind]bool{openai.Chat: true, openai.Completion: true, openai.Messages: false, openai.Responses: false} {
			r, _ := request.Parse(kind, []byte(body)) // a refused request is parsed as well
			assert.Equal(t, want && returned, r.TokensIdentifyCache(), "%s on %v", body, kind)
		}
	}
}
