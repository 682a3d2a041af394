package engine_test

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/pdmesh/pdmesh/bench/answer"
	"github.com/pdmesh/pdmesh/bench/engine"
	"github.com/pdmesh/pdmesh/internal/vllm"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

func start(t *testing.T) (*engine.Engine, string) {
	t.Helper()
	e, err := engine.Start(t.Context(), engine.Options{Listen: []string{"127.0.0.1:0"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e, "http://" + e.Addresses()[0]
}

// TestProbes: what proxies and agents ask is answered.
func TestProbes(t *testing.T) {
	t.Parallel()
	_, base := start(t)
	c := vllm.New("")
	if err := c.Health(t.Context(), base); err != nil {
		t.Error(err)
	}
	facts, err := c.Facts(t.Context(), base)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(facts.Models, answer.Model) || facts.StartedAt.IsZero() {
		t.Errorf("facts %+v", facts)
	}
}

func TestRequests(t *testing.T) {
	t.Parallel()
	const tag = "00000000000000ab"
	content := answer.Mark + tag + ` say \"}]\\`
	sum := answer.Sum([]byte(` say \"}]\\`))
	kv := func(id string) string {
		return `"kv_transfer_params": {"do_remote_prefill": true, "remote_request_id": "` + id + `"}`
	}
	right := fmt.Sprintf("%s%s-%08x", answer.KVPrefix, tag, sum)
	messages := `"messages": [{"role": "user", "content": ` + content + `"}]`
	tests := []struct {
		name, body string
		status     int
		want       []string // in the answer
		violations uint64
	}{
		{"whole", `{"model":"m",` + messages + `, "max_tokens": 2}`, 200, []string{" " + tag + ".000000", " " + tag + ".000001", `"completion_tokens":2`, answer.Handover + "null"}, 0},
		{"completions", `{"prompt":` + content + `","max_tokens":1}`, 200, []string{" " + tag + ".000000"}, 0},
		{"stream", `{"stream":true,"stream_options":{"include_usage":true},` + messages + `,"max_completion_tokens":2}`, 200, []string{`"role":"assistant"`, tag + ".000001", `"usage":{`, "data: [DONE]\n\n"}, 0},
		{"prefill", `{"kv_transfer_params":{"do_remote_decode":true},` + messages + `,"max_tokens":1}`, 200, []string{`"remote_request_id":"` + right}, 0},
		{"decode", `{` + kv(right) + `,` + messages + `,"max_tokens":1}`, 200, []string{tag}, 0},
		{"another prompt's KV cache", `{` + kv(strings.Replace(right, "ab-", "ac-", 1)) + `,` + messages + `}`, 500, []string{"another prompt"}, 1},
		{"a KV cache without a name", `{"kv_transfer_params":{"do_remote_prefill":true},` + messages + `}`, 500, []string{"another prompt"}, 1},
		{"without a mark", `{"messages":[],"max_tokens":1}`, 200, []string{"0000000000000000"}, 0},
		{"no JSON", `hello`, 400, []string{"no JSON object"}, 1},
		{"cut JSON", `{"messages":[{"content":"x`, 400, []string{"ends within"}, 1},
		{"no tokens", `{"max_tokens":0}`, 400, []string{"max_tokens"}, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e, base := start(t)
			path := "/v1/chat/completions"
			if tt.name == "completions" {
				path = "/v1/completions"
			}
			// A reader of unknown length is sent in chunks.
			for _, body := range []io.Reader{strings.NewReader(tt.body), io.MultiReader(strings.NewReader(tt.body))} {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, base+path, body)
				if err != nil {
					t.Fatal(err)
				}
				req.Close = true
				res, err := http.DefaultClient.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				got, err := io.ReadAll(res.Body)
				res.Body.Close()
				if err != nil || res.StatusCode != tt.status {
					t.Fatalf("status %d, %v: %s", res.StatusCode, err, got)
				}
				for _, want := range tt.want {
					if !strings.Contains(string(got), want) {
						t.Errorf("%q is not in %s", want, got)
					}
				}
			}
			if s := e.Stats(); s.Violations != 2*tt.violations {
				t.Errorf("%d violations, want %d", s.Violations, 2*tt.violations)
			}
		})
	}
}
