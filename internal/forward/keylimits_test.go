package forward_test

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/forward/flow"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched/keylimit"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// limited starts a rig in which the header Key names the client's key.
func limited(t *testing.T, limits map[string]instance.KeyLimits) (*rig, *keylimit.Table) {
	t.Helper()
	table := new(keylimit.Table)
	table.Set(limits)
	return startTuned(t, fakevllm.NIXL, 1, 1, tuning{
		forward: func(o *forward.Options) {
			o.Keys, o.KeyName = table, func(r *http.Request) string { return r.Header.Get("Key") }
		},
		engine: func(o *fakevllm.Options) { o.CacheBlocks = 1000 },
	}), table
}

// Requests above a limit get vLLM's error with status 429, in the format of the route, on every route that
// engines answer. Answers of limited keys have OpenAI's header, others do not.
func TestKeyLimits(t *testing.T) {
	t.Parallel()
	r, table := limited(t, map[string]instance.KeyLimits{"a": {V: 1, Requests: 1}, "b": {V: 1, Input: 60}, instance.DefaultKey: {V: 1, Concurrent: 5}})
	const message = `{"model":"m","max_tokens":3,"messages":[{"role":"user","content":"hi"}]}`
	for _, tc := range []struct {
		key, path, body string
		status          int
		contains        string
		header          string // limit and remaining requests, tokens
	}{
		{"a", "/v1/chat/completions", chatBody(true, ""), 200, "data:", "1 0"},
		{"a", "/v1/chat/completions", chatBody(true, ""), 429, `{"error":{"message":"Rate limit reached for API key a: limit 1 requests per minute. Please try again in`, "1 0"},
		{"a", "/v1/messages", message, 429, `{"type":"error","error":{"type":"RateLimitError","message":"Rate limit`, "1 0"},
		{"a", "/v1/messages/count_tokens", message, 429, `{"type":"error","error":{"type":"RateLimitError","message":"Rate limit`, "1 0"},
		{"a", "/v1/embeddings", `{"model":"m","input":"x"}`, 429, `"type":"RateLimitError","param":null,"code":429`, "1 0"},
		{"a", "/v1/chat/completions", `{"model":`, 400, "", ""},
		{"b", "/v1/completions", `{"model":"m","max_tokens":2,"prompt":"` + strings.Repeat("the sea ", 40) + `"}`, 200, "", "60 0"},
		{"b", "/v1/embeddings", `{"model":"m","input":"x"}`, 429, "limit 60 input tokens per minute", "60 0"},
		{"b", "/tokenize", `{"model":"m","prompt":"x"}`, 200, "", "60 0"},
		{"c", "/v1/chat/completions", chatBody(false, ""), 200, "", ""},
		{"", "/v1/chat/completions", chatBody(false, ""), 200, "", ""},
	} {
		a := r.post(tc.path, tc.body, "Key", tc.key)
		h := ""
		for _, of := range []string{"Requests", "Tokens"} {
			if v := a.header.Get("X-Ratelimit-Limit-" + of); v != "" {
				h += v + " " + a.header.Get("X-Ratelimit-Remaining-"+of)
				if d, err := time.ParseDuration(a.header.Get("X-Ratelimit-Reset-" + of)); err != nil || d <= 0 {
					t.Errorf("%s %s: reset: %s, %v", tc.key, tc.path, d, err)
				}
			}
		}
		assert.True(t, a.status == tc.status && strings.Contains(string(a.body), tc.contains) && h == tc.header,
			"%s %s: %d %q %s, want %d %q %s", tc.key, tc.path, a.status, h, a.body, tc.status, tc.header, tc.contains)
		if e := r.entry(); a.status == 429 != strings.HasPrefix(e.Refused, "key_limit_") {
			t.Errorf("%s %s: %d with %q in the access log", tc.key, tc.path, a.status, e.Refused)
		}
		after := a.header.Get("Retry-After")
		assert.Equal(t, (a.status == 429), (after != ""), "%s %s: %d with Retry-After %q", tc.key, tc.path, a.status, after)
	}
	want := "[a 1 4 b 2 1 c 1 0 default 1 0]"
	eventually(t, want, func() bool {
		var is []any
		for _, u := range table.Usage() {
			if u.InFlight != 0 || u.Hour.Input == 0 {
				return false
			}
			is = append(is, u.Key, u.Hour.Requests, u.Hour.Refused)
		}
		return fmt.Sprint(is) == want
	})
}

// removingHealth removes the client's key when an instance has served.
type removingHealth struct {
	flow.Health
	removed *atomic.Bool
}

func (f removingHealth) Success(in *instance.Instance, model string) {
	f.removed.Store(true)
	f.Health.Success(in, model)
}

// If the key of a running request is removed, the log and the usage still have the key's name.
func TestKeyRemoved(t *testing.T) {
	t.Parallel()
	table, removed := new(keylimit.Table), new(atomic.Bool)
	r := start(t, fakevllm.NIXL, 1, 1, func(o *forward.Options) {
		o.Health, o.Keys = removingHealth{o.Health, removed}, table
		o.KeyName = func(*http.Request) string {
			if removed.Load() {
				return ""
			}
			return "a"
		}
	})
	r.post("/v1/chat/completions", chatBody(false, "")).require(t, http.StatusOK)
	if e, use := r.entry(), table.Usage(); !removed.Load() || e.KeyName != "a" || len(use) != 1 || use[0].Key != "a" {
		t.Errorf("log: %q, use: %+v", e.KeyName, use)
	}
}

// Requests without a body are not limited, but count as use of their key.
func TestKeyUse_WithoutBody(t *testing.T) {
	t.Parallel()
	r, table := limited(t, map[string]instance.KeyLimits{"a": {V: 1, Requests: 1}})
	one := responsesPath + "/" + r.stored("")
	r.entry()
	for _, q := range [][2]string{{http.MethodGet, one}, {http.MethodPost, one + "/cancel"}, {http.MethodGet, "/tokenizer_info"}} {
		a := do(http.DefaultClient, newRequest(t.Context(), t, q[0], r.URL+q[1], nil, "Key", "a"))
		assert.Equal(t, "uvicorn", a.header.Get("Server"), "%s: %d %s", q, a.status, a.body)
		r.entry()
	}
	for _, u := range table.Usage() {
		want := map[string]int64{"a": 3, instance.DefaultKey: 1}[u.Key]
		assert.Equal(t, want, u.Hour.Requests, "%s: requests", u.Key)
	}
}

// A prompt that prefill has computed is not cached, although decode gets its KV cache from prefill.
func TestKeyLimits_Uncached(t *testing.T) {
	t.Parallel()
	r, table := limited(t, map[string]instance.KeyLimits{"a": {V: 1, Uncached: 1_000_000}})
	var before instance.KeyUse
	for i, stream := range []bool{false, true, false} {
		body := strings.Replace(chatBody(stream, `,"stream_options":{"include_usage":true}`), "tell me", strings.Repeat("tell me ", 200), 1)
		if !stream {
			body = strings.Replace(body, `,"stream_options":{"include_usage":true}`, "", 1)
		}
		r.post("/v1/chat/completions", body, "Key", "a").require(t, 200)
		e, u := r.entry(), table.Usage()[0].Hour
		if e.KeyName != "a" || u.Requests != int64(i+1) || u.Input-before.Input != int64(e.Input) || u.Cached-before.Cached != int64(e.Cached) || u.Output-before.Output != int64(e.Output) {
			t.Fatalf("%+v after %+v, entry: %d %d %d", u, before, e.Input, e.Cached, e.Output)
		}
		assert.True(t, e.Input >= 200 && (e.Cached > e.Input/2) == (i > 0),
			"request %d: %d of %d tokens were cached", i, e.Cached, e.Input)
		before = u
	}
}

// The bytes of an image do not count as tokens: other requests of the key are admitted meanwhile.
func TestKeyLimits_Media(t *testing.T) {
	t.Parallel()
	r, _ := limited(t, map[string]instance.KeyLimits{"a": {V: 1, Input: 100_000}})
	picture := `[{"type":"image_url","image_url":{"url":"data:image/png;base64,` + strings.Repeat("ABCD", 1<<18) + `"}}]`
	body := `{"model":"m","messages":[{"role":"user","content":` + picture + `}],"max_tokens":12}`
	a := r.post("/v1/chat/completions", body, "Key", "a")
	if left, err := strconv.Atoi(a.header.Get("X-Ratelimit-Remaining-Tokens")); err != nil || left == 0 {
		t.Errorf("%d: %.500s; the key has %q tokens left", a.status, a.body, a.header.Get("X-Ratelimit-Remaining-Tokens"))
	}
}
