package engine_test

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/bench/answer"
	"github.com/pdmesh/pdmesh/bench/engine"
	"github.com/pdmesh/pdmesh/internal/engine/vllm"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

func start(t *testing.T) (*engine.Engine, string) {
	t.Helper()
	e, err := engine.Start(t.Context(), []string{"127.0.0.1:0"}, time.Millisecond)
	require.NoError(t, err)
	t.Cleanup(e.Close)
	return e, "http://" + e.Addresses()[0]
}

func TestEngine_Probes(t *testing.T) {
	t.Parallel()
	_, base := start(t)
	c := vllm.New("")
	assert.NoError(t, c.Health(t.Context(), base))
	facts, err := c.Facts(t.Context(), base)
	require.NoError(t, err)
	assert.True(t, slices.Contains(facts.Models, answer.Model) && !facts.StartedAt.IsZero(), "facts %+v", facts)
}

func TestEngine_Completions(t *testing.T) {
	t.Parallel()
	const tag, rest = "00000000000000ab", ` some text\n`
	name := fmt.Sprintf("chatcmpl-%s-%08x", tag, answer.Sum([]byte(rest)))
	kv := func(id string) string {
		return `"kv_transfer_params": {"do_remote_prefill": true, "remote_request_id": "` + id + `"}`
	}
	prompt := `"messages": [{"role": "user", "content": ` + answer.Mark + tag + rest + `"}]`
	for _, tt := range []struct {
		name, body string
		status     int
		want       []string // in the response
		stats      engine.Stats
	}{
		{"whole", `{"model":"m",` + prompt + `, "max_tokens": 2}`, 200, []string{" " + tag + ".000000", " " + tag + ".000001", `"completion_tokens":2`, `"kv_transfer_params":null`}, engine.Stats{Requests: 1}},
		{"stream", `{"stream":true,"stream_options":{"include_usage":true},` + prompt + `,"max_completion_tokens":2}`, 200, []string{`"role":"assistant"`, tag + ".000001", `"usage":{`, "data: [DONE]\n\n"}, engine.Stats{Requests: 1}},
		{"stream of one token", `{` + prompt + `,"max_tokens":1,"stream":true}`, 200, []string{tag + ".000000", "data: [DONE]\n\n"}, engine.Stats{Requests: 1}},
		{"prefill", `{"kv_transfer_params":{"do_remote_decode":true},` + prompt + `,"max_tokens":1}`, 200, []string{`"remote_request_id":"` + name}, engine.Stats{Requests: 1, Prefills: 1}},
		{"decode", `{` + kv(name) + `,` + prompt + `,"max_tokens":1}`, 200, []string{tag}, engine.Stats{Requests: 1, Transfers: 1}},
		{"KV cache of another prompt", `{` + kv(strings.Replace(name, "ab-", "ac-", 1)) + `,` + prompt + `}`, 500, []string{"another prompt"}, engine.Stats{Violations: 1}},
		{"KV cache without a name", `{"kv_transfer_params":{"do_remote_prefill":true},` + prompt + `}`, 500, []string{"another prompt"}, engine.Stats{Violations: 1}},
		{"no tag", `{"messages":[],"max_tokens":1}`, 200, []string{"0000000000000000"}, engine.Stats{Requests: 1}},
		{"no JSON", `hello`, 400, []string{"not a JSON object"}, engine.Stats{Violations: 1}},
		{"no tokens", `{"max_tokens":0}`, 400, []string{"max_tokens"}, engine.Stats{Violations: 1}},
	} {
		// A body without a length is sent in chunks.
		for form, body := range map[string]io.Reader{"length": strings.NewReader(tt.body), "chunks": io.MultiReader(strings.NewReader(tt.body))} {
			t.Run(tt.name+"/"+form, func(t *testing.T) {
				t.Parallel()
				e, base := start(t)
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, base+answer.Path, body)
				require.NoError(t, err)
				req.Close = true
				res, err := http.DefaultClient.Do(req)
				require.NoError(t, err)
				defer res.Body.Close()
				got, err := io.ReadAll(res.Body)
				require.True(t, err == nil && res.StatusCode == tt.status, "status %d, %v: %s", res.StatusCode, err, got)
				require.True(t, testkit.Contains(t, string(got), tt.want...))
				assert.Equal(t, tt.stats, e.Stats(), "stats")
			})
		}
	}
}
