package fakevllm_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

const user = `"messages":[{"role":"user","content":"hi"}]`

// TestStrictness checks what TestRefusals has no recording of.
func TestStrictness(t *testing.T) {
	t.Parallel()
	s := fakevllm.StartTest(t, fakevllm.Options{Models: []string{"org/m", "alias"}, MaxModelLen: 64})
	c := client(t)
	const text, chat = "/v1/completions", "/v1/chat/completions"
	long := "[" + strings.Repeat("100,", 59) + "100]" // 60 tokens
	tool := `"tools":[{"type":"function","function":{"name":"f","parameters":{}}}]`
	for _, tt := range []struct {
		name, path, body string
		status           int
		message          string // part of it
		kind             string
		param            string
	}{
		{"alias", text, `{"prompt":"hi","model":"alias"}`, 200, "", "", ""},
		{"unknown model comes before bad sampling", text, `{"prompt":"hi","model":"nope","temperature":9}`, 404, "does not exist", "NotFoundError", "model"},
		{"token ids as floats and text", text, `{"prompt":[100.0,"200"]}`, 200, "", "", ""},
		{"prompt above the context by one", text, `{"prompt":` + strings.Replace(long, "[", "[1,2,3,4,5,", 1) + `}`, 400, "This model's maximum context length is 64 tokens. However, your prompt contains at least 65 input tokens, which", "BadRequestError", "input_tokens"},
		{"prompt and max_tokens above the context", text, `{"prompt":` + long + `,"max_tokens":5}`, 200, "", "", ""},
		{"max_tokens above the context", text, `{"prompt":` + long + `,"max_tokens":65}`, 400, "max_tokens=65 cannot be greater than max_model_len=64.", "BadRequestError", "max_tokens"},
		{"prompt fills the context", text, `{"prompt":` + strings.Replace(long, "[", "[1,2,3,4,", 1) + `}`, 400, "max_tokens must be at least 1, got 0.", "BadRequestError", "max_tokens"},
		{"default max_tokens above the context", text, `{"prompt":` + long + `}`, 200, "", "", ""},
		{"image", chat, `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:"}}]}]}`, 400, "not a multimodal model", "BadRequestError", ""},
		{"null content with tool calls", chat, `{"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]}]}`, 200, "", "", ""},
		{"chat fills the context", chat, `{"messages":[{"role":"user","content":"` + strings.Repeat("x ", 70) + `"}]}`, 400, "your prompt contains 76 input tokens, which exceeds", "BadRequestError", "input_tokens"},
		{"required tool cut", chat, `{` + user + `,` + tool + `,"tool_choice":"required","max_tokens":1}`, 400, "Invalid JSON", "BadRequestError", ""},
		{"continue and generate", chat, `{` + user + `,"continue_final_message":true,"add_generation_prompt":true}`, 400, "Cannot set both", "BadRequestError", ""},
		{"tokenize for an unknown model", "/tokenize", `{"prompt":"a","model":"nope"}`, 404, "does not exist", "NotFoundError", "model"},
		{"detokenize", "/detokenize", `{"tokens":[100,101]}`, 200, "", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := post(t, c, s.URL()+tt.path, "", tt.body)
			require.Equal(t, tt.status, r.status, "status %d, not %d: %s", r.status, tt.status, r.body)
			if tt.status == http.StatusOK {
				assert.True(t, json.Valid([]byte(r.body)), "not JSON: %s", r.body)
				return
			}
			var e struct {
				Error struct {
					Message string  `json:"message"`
					Type    string  `json:"type"`
					Param   *string `json:"param"`
					Code    int     `json:"code"`
				} `json:"error"`
			}
			require.NoError(t, json.Unmarshal([]byte(r.body), &e), r.body)
			if !strings.Contains(e.Error.Message, tt.message) || e.Error.Code != tt.status || e.Error.Type != tt.kind {
				t.Errorf("error is %s", r.body)
			}
			if tt.param != "" && (e.Error.Param == nil || *e.Error.Param != tt.param) {
				t.Errorf("param is not %q: %s", tt.param, r.body)
			}
		})
	}
}

func TestRoutes(t *testing.T) {
	t.Parallel()
	s := fakevllm.StartTest(t, fakevllm.Options{APIKey: "sesame", Version: "0.99.1", Models: []string{"a/b", "c"}, MaxModelLen: 77})
	c := client(t)
	for _, tt := range []struct {
		name, method, path, auth, contentType, body string
		status                                      int
		answer                                      string // whole, or "" for any
	}{
		{"health needs no key", "GET", "/health", "", "", "", 200, ""},
		{"ping", "GET", "/ping", "", "", "", 200, ""},
		{"version", "GET", "/version", "", "", "", 200, `{"version":"0.99.1"}`},
		{"metrics", "GET", "/metrics", "", "", "", 200, ""},
		{"tokenize needs no key", "POST", "/tokenize", "", "application/json", `{"prompt":" bababa"}`, 200, ""},
		{"models without key", "GET", "/v1/models", "", "", "", 401, `{"error":"Unauthorized"}`},
		{"models with a wrong key", "GET", "/v1/models", "Bearer x", "", "", 401, `{"error":"Unauthorized"}`},
		{"models with a key", "GET", "/v1/models", "bearer sesame", "", "", 200, ""},
		{"unknown route under /v1 without key", "GET", "/v1/nothing", "", "", "", 401, `{"error":"Unauthorized"}`},
		{"unknown route under /v1", "GET", "/v1/nothing", "Bearer sesame", "", "", 404, `{"detail":"Not Found"}`},
		{"unknown route", "POST", "/reset_prefix_cache", "", "", "", 404, `{"detail":"Not Found"}`},
		{"wrong method", "GET", "/v1/completions", "Bearer sesame", "", "", 405, `{"detail":"Method Not Allowed"}`},
		{"OPTIONS needs no key", "OPTIONS", "/v1/completions", "", "", "", 405, ""},
		{"admin routes are off", "GET", "/fake/state", "", "", "", 404, `{"detail":"Not Found"}`},
		{"no content type", "POST", "/v1/completions", "Bearer sesame", "", `{"prompt":"x"}`, 400, ""},
		{"text", "POST", "/v1/completions", "Bearer sesame", "text/plain", `{"prompt":"x"}`, 400, ""},
		{"parameters", "POST", "/v1/completions", "Bearer sesame", "Application/JSON; charset=utf-8", `{"prompt":"x"}`, 200, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			req, err := http.NewRequestWithContext(t.Context(), tt.method, s.URL()+tt.path, strings.NewReader(tt.body))
			require.NoError(t, err)
			if tt.auth != "" {
				req.Header.Set("Authorization", tt.auth)
			}
			if tt.contentType != "" {
				req.Header.Set("Content-Type", tt.contentType)
			}
			r := do(t, c, req)
			if r.status != tt.status || tt.answer != "" && r.body != tt.answer {
				t.Errorf("%d %s; expected %d %s", r.status, r.body, tt.status, tt.answer)
			}
		})
	}
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL()+"/v1/models", nil)
	req.Header.Set("Authorization", "Bearer sesame")
	var list struct {
		Object string
		Data   []struct {
			ID          string
			Object      string
			OwnedBy     string `json:"owned_by"`
			Root        string
			Parent      *string
			MaxModelLen int `json:"max_model_len"`
			Permission  []struct{ Object string }
		}
	}
	require.NoError(t, json.Unmarshal([]byte(do(t, c, req).body), &list))
	if len(list.Data) != 2 || list.Data[0].ID != "a/b" || list.Data[1].ID != "c" || list.Data[1].Root != "a/b" ||
		list.Data[0].MaxModelLen != 77 || list.Data[0].OwnedBy != "vllm" || list.Data[0].Permission[0].Object != "model_permission" {
		t.Errorf("models are %+v", list)
	}
}

func TestBadOptions(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		o    fakevllm.Options
	}{
		{"role", fakevllm.Options{Role: "chef"}},
		{"mode", fakevllm.Options{Mode: "pigeon"}},
		{"address", fakevllm.Options{Addr: "nowhere"}},
		{"time", fakevllm.Options{TTFT: -1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if s, err := fakevllm.Start(t.Context(), tt.o); err == nil {
				s.Close()
				t.Error("invalid options are accepted")
			}
		})
	}
}

// An engine counts requests that no correct proxy sends to its role.
func TestViolations(t *testing.T) {
	t.Parallel()
	const notPrefill, isPrefill, noRank = "kv_transfer_params has not the prefill form", "kv_transfer_params has the prefill form", "no X-data-parallel-rank"
	for _, tt := range []struct {
		mode fakevllm.Mode
		role fakevllm.Role
		kv   string
		want []string
	}{
		{fakevllm.Plain, fakevllm.RoleBoth, "{}", []string{"kv_transfer_params in plain mode"}},
		{fakevllm.NIXL, fakevllm.RolePrefill, prefillForm, nil},
		{fakevllm.NIXL, fakevllm.RolePrefill, "null", []string{notPrefill}},
		{fakevllm.NIXL, fakevllm.RoleDecode, prefillForm, []string{isPrefill}},
		{fakevllm.NIXL, fakevllm.RoleBoth, prefillForm, nil},
		{fakevllm.P2P, fakevllm.RolePrefill, "null", []string{"kv_transfer_params has no remote_decoder", noRank}},
		{fakevllm.Mooncake, fakevllm.RolePrefill, `{"do_remote_decode":true}`, []string{notPrefill, noRank}},
		{fakevllm.LMCache, fakevllm.RolePrefill, "null", []string{notPrefill}},
	} {
		s := fakevllm.StartTest(t, fakevllm.Options{Mode: tt.mode, Role: tt.role, StrictPrefill: true})
		post(t, client(t), s.URL()+"/v1/completions", "R", `{"prompt":"x","max_tokens":1,"kv_transfer_params":`+tt.kv+`}`)
		var got []string
		for _, v := range s.Violations() {
			_, what, _ := strings.Cut(v, " engine, cmpl-R: ")
			got = append(got, what)
		}
		assert.Equal(t, tt.want, got, "%s %q, %s", tt.mode, tt.role, tt.kv)
	}
}
