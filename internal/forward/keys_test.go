package forward_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// Engines get the client's key or the proxy's. A scheme without a key, which lm-eval sends if its
// OPENAI_API_KEY is not set, is no key.
func TestKeyForTheEngines(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, sent, want string
		checked          bool // the proxy checks its clients' keys
	}{
		{name: "none", want: "Bearer engines"},
		{name: "the client's", sent: "Bearer mine", want: "Bearer mine"},
		{name: "of another scheme", sent: "Basic bTpt", want: "Basic bTpt"},
		{name: "an empty one", sent: "Bearer ", want: "Bearer engines"},
		{name: "an empty one without a blank", sent: "bearer", want: "Bearer engines"},
		{name: "the client's, checked", sent: "Bearer mine", checked: true, want: "Bearer engines"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := start(t, fakevllm.NIXL, 1, 1, func(o *forward.Options) { o.EngineKey, o.ClientKeys = "engines", tc.checked })
			header := []string{"X-Api-Key", "mine", "X_api_key", "mine"}
			if tc.sent != "" {
				header = append(header, "Authorization", tc.sent)
			}
			r.post("/v1/chat/completions", chatBody(false, ""), header...).require(t, http.StatusOK)
			for _, s := range []*fakevllm.Server{r.P[0], r.D[0]} {
				for _, q := range posted(s) {
					assert.Equal(t, tc.want, q.Header.Get("Authorization"), s.Address())
					assert.True(t, q.Header["X-Api-Key"] == nil && q.Header["X_api_key"] == nil,
						"%s got the client's x-api-key: %v", s.Address(), q.Header)
				}
			}
		})
	}
}
