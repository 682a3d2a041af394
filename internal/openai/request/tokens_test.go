package request_test

import (
	"testing"

	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/request"
)

func TestTokensTell(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]bool{
		`{"messages":[],"prompt":"p"}`:                  true,
		`{"messages":[],"prompt":"p","cache_salt":"s"}`: false,
	} {
		for kind, tells := range map[openai.Kind]bool{openai.Chat: true, openai.Completion: true, openai.Messages: false, openai.Responses: false} {
			r, _ := request.Parse(kind, []byte(body)) // what is refused can be read all the same
			if got := r.TokensTell(); got != (want && tells) {
				t.Errorf("%s on %v: %t", body, kind, got)
			}
		}
	}
}
