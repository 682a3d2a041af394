package fakevllm_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/testkit/require"
)

const user = `"messages":[{"role":"user","content":"hi"}]`

// TestStrictness checks the status, type and param of errors, and the messages of vLLM's own
// checks.
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
		{"plain prompt", text, `{"prompt":"hi"}`, 200, "", "", ""},
		{"no model is the first", text, `{"prompt":"hi","model":null}`, 200, "", "", ""},
		{"alias", text, `{"prompt":"hi","model":"alias"}`, 200, "", "", ""},
		{"unknown model", text, `{"prompt":"hi","model":"nope"}`, 404, "The model `nope` does not exist.", "NotFoundError", "model"},
		{"unknown model comes before bad sampling", text, `{"prompt":"hi","model":"nope","temperature":9}`, 404, "does not exist", "NotFoundError", "model"},
		{"model of a wrong type", text, `{"prompt":"hi","model":5}`, 400, "", "Bad Request", "body.model"},
		{"trailing bytes", text, `{"prompt":"hi"} x`, 400, "", "Bad Request", "body"},
		{"broken value of an unknown field", text, `{"prompt":"hi","x":[1,}`, 400, "", "Bad Request", "body"},
		{"unknown fields", text, `{"prompt":"hi","foo":{"a":[1]},"best_of":3}`, 200, "", "", ""},
		{"last duplicate counts, good", text, `{"prompt":"hi","max_tokens":0,"max_tokens":2}`, 200, "", "", ""},
		{"last duplicate counts, bad", text, `{"prompt":"hi","max_tokens":2,"m\u0061x_tokens":0}`, 400, "max_tokens must be at least 1, got 0.", "BadRequestError", "max_tokens"},
		{"no prompt", text, `{}`, 400, "Either prompt or prompt_embeds must be provided and non-empty.", "BadRequestError", "prompt"},
		{"null prompt", text, `{"prompt":null}`, 400, "Either prompt or", "BadRequestError", "prompt"},
		{"empty prompt", text, `{"prompt":""}`, 400, "Either prompt or", "BadRequestError", "prompt"},
		{"empty list", text, `{"prompt":[]}`, 400, "at least one prompt", "BadRequestError", ""},
		{"list of strings", text, `{"prompt":["a","b c"]}`, 200, "", "", ""},
		{"token ids", text, `{"prompt":[100,200]}`, 200, "", "", ""},
		{"token ids as floats and text", text, `{"prompt":[100.0,"200"]}`, 200, "", "", ""},
		{"lists of token ids", text, `{"prompt":[[100],[200,300]]}`, 200, "", "", ""},
		{"negative token", text, `{"prompt":[100,-1]}`, 400, "", "Bad Request", "body.prompt.1"},
		{"token out of vocabulary", text, `{"prompt":[131072]}`, 400, "Token id 131072 is out of vocabulary", "BadRequestError", ""},
		{"prompt embeds", text, `{"prompt_embeds":"AAAA"}`, 400, "--enable-prompt-embeds", "BadRequestError", "prompt_embeds"},
		{"suffix", text, `{"prompt":"hi","suffix":"x"}`, 400, "suffix is only supported for models with FIM completion rendering", "BadRequestError", "suffix"},
		{"max_tokens 0", text, `{"prompt":"hi","max_tokens":0}`, 400, "max_tokens must be at least 1, got 0.", "BadRequestError", "max_tokens"},
		{"max_tokens negative", text, `{"prompt":"hi","max_tokens":-3}`, 400, "max_tokens must be at least 1, got -3.", "BadRequestError", "max_tokens"},
		{"max_tokens as text", text, `{"prompt":"hi","max_tokens":" 5 "}`, 200, "", "", ""},
		{"max_tokens as a whole float", text, `{"prompt":"hi","max_tokens":5.0}`, 200, "", "", ""},
		{"max_tokens fraction", text, `{"prompt":"hi","max_tokens":5.5}`, 400, "", "Bad Request", "body.max_tokens"},
		{"max_tokens above the context", text, `{"prompt":"hi","max_tokens":65}`, 400, "Please request fewer output tokens.", "BadRequestError", "max_tokens"},
		{"prompt and max_tokens above the context", text, `{"prompt":` + long + `,"max_tokens":5}`, 400, "You passed 60 input tokens and requested 5 output tokens. However, the model's context length is only 64 tokens", "BadRequestError", "input_tokens"},
		{"just within the context", text, `{"prompt":` + long + `,"max_tokens":4}`, 200, "", "", ""},
		{"default max_tokens above the context", text, `{"prompt":` + long + `}`, 400, "You passed 60 input tokens and requested 16", "BadRequestError", "input_tokens"},
		{"min_tokens above max_tokens", text, `{"prompt":"hi","max_tokens":1,"min_tokens":5}`, 400, "min_tokens must be less than or equal to max_tokens=1, got 5.", "BadRequestError", ""},
		{"min_tokens above the default", text, `{"prompt":"hi","min_tokens":20}`, 400, "min_tokens must be less than or equal to max_tokens=16, got 20.", "BadRequestError", ""},
		{"min_tokens negative", text, `{"prompt":"hi","min_tokens":-1}`, 400, "min_tokens must be greater than or equal to 0, got -1.", "BadRequestError", ""},
		{"stream_options without stream", text, `{"prompt":"hi","stream_options":{"include_usage":true}}`, 400, "Stream options can only be defined when `stream=True`.", "BadRequestError", "stream_options"},
		{"empty stream_options without stream", text, `{"prompt":"hi","stream_options":{}}`, 200, "", "", ""},
		{"null stream_options without stream", text, `{"prompt":"hi","stream_options":null}`, 200, "", "", ""},
		{"stream_options with stream false", chat, `{` + user + `,"stream":false,"stream_options":{"include_usage":false}}`, 400, "Stream options can only", "BadRequestError", "stream_options"},
		{"stream is a number", text, `{"prompt":"hi","stream":2}`, 400, "", "Bad Request", "body.stream"},
		{"n 0", text, `{"prompt":"hi","n":0}`, 400, "n must be at least 1, got 0.", "BadRequestError", ""},
		{"n too large", text, `{"prompt":"hi","n":16385}`, 400, "n must be at most 16384", "BadRequestError", ""},
		{"n 2 with greedy", text, `{"prompt":"hi","n":2,"temperature":0}`, 400, "n must be 1 when using greedy sampling, got 2.", "BadRequestError", ""},
		{"temperature negative", text, `{"prompt":"hi","temperature":-1}`, 400, "temperature must be non-negative, got -1.", "BadRequestError", "temperature"},
		{"temperature hot", text, `{"prompt":"hi","temperature":2.5}`, 400, "temperature must be in [0, 2], got 2.5.", "BadRequestError", "temperature"},
		{"temperature as text", text, `{"prompt":"hi","temperature":"0.5"}`, 200, "", "", ""},
		{"temperature list", text, `{"prompt":"hi","temperature":[]}`, 400, "", "Bad Request", "body.temperature"},
		{"top_p 0", text, `{"prompt":"hi","top_p":0}`, 400, "top_p must be in (0, 1], got 0.", "BadRequestError", "top_p"},
		{"top_p above 1", text, `{"prompt":"hi","top_p":1.5}`, 400, "top_p must be in (0, 1], got 1.5.", "BadRequestError", "top_p"},
		{"top_k -2", text, `{"prompt":"hi","top_k":-2}`, 400, "top_k must be 0 (disable), or at least 1, got -2.", "BadRequestError", ""},
		{"min_p", text, `{"prompt":"hi","min_p":1.5}`, 400, "min_p must be in [0, 1], got 1.5.", "BadRequestError", ""},
		{"presence_penalty", text, `{"prompt":"hi","presence_penalty":3}`, 400, "presence_penalty must be in [-2, 2], got 3.", "BadRequestError", ""},
		{"frequency_penalty", text, `{"prompt":"hi","frequency_penalty":-3}`, 400, "frequency_penalty must be in [-2, 2]", "BadRequestError", ""},
		{"repetition_penalty", text, `{"prompt":"hi","repetition_penalty":0}`, 400, "repetition_penalty must be greater than zero, got 0.", "BadRequestError", ""},
		{"empty stop", text, `{"prompt":"hi","stop":["a",""]}`, 400, "stop cannot contain an empty string", "BadRequestError", ""},
		{"stop of a number", text, `{"prompt":"hi","stop":[1]}`, 400, "", "Bad Request", "body.stop"},
		{"stop_token_ids of text", text, `{"prompt":"hi","stop_token_ids":["x"]}`, 400, "", "Bad Request", "body.stop_token_ids.0"},
		{"logprobs negative", text, `{"prompt":"hi","logprobs":-2}`, 400, "`logprobs` must be a positive value or -1.", "BadRequestError", "logprobs"},
		{"logprobs too many", text, `{"prompt":"hi","logprobs":21}`, 400, "Requested more sample logprobs than max allowed: 20", "BadRequestError", "logprobs"},
		{"logprobs as text", text, `{"prompt":"hi","logprobs":"1"}`, 400, "`logprobs` must be an integer.", "BadRequestError", "logprobs"},
		{"top_logprobs without logprobs", chat, `{` + user + `,"top_logprobs":2}`, 400, "when using `top_logprobs`, `logprobs` must be set to true.", "BadRequestError", "top_logprobs"},
		{"prompt_logprobs with stream", text, `{"prompt":"hi","stream":true,"prompt_logprobs":1}`, 400, "`prompt_logprobs` are not available when `stream=True`.", "BadRequestError", "prompt_logprobs"},
		{"logit_bias", text, `{"prompt":"hi","logit_bias":{"a":1}}`, 400, "cannot be converted to integer token IDs: ['a']", "BadRequestError", "logit_bias"},
		{"kv_transfer_params of text", text, `{"prompt":"hi","kv_transfer_params":"x"}`, 400, "", "Bad Request", "body.kv_transfer_params"},
		{"kv_transfer_params null", text, `{"prompt":"hi","kv_transfer_params":null}`, 200, "", "", ""},
		{"an object in vllm_xargs", text, `{"prompt":"hi","vllm_xargs":{"kv_transfer_params":{}}}`, 400, "", "Bad Request", "body.vllm_xargs.kv_transfer_params"},
		{"numbers in vllm_xargs", text, `{"prompt":"hi","vllm_xargs":{"a":1,"b":"x","c":[1,"y"]}}`, 200, "", "", ""},
		{"cache_salt", text, `{"prompt":"hi","cache_salt":"a/b"}`, 400, "cache_salt", "BadRequestError", "cache_salt"},
		{"response_format", text, `{"prompt":"hi","response_format":{"type":"json_object"}}`, 200, "", "", ""},
		{"response_format unknown", chat, `{` + user + `,"response_format":{"type":"xml"}}`, 400, "", "Bad Request", "body.response_format.type"},
		{"json_schema without one", chat, `{` + user + `,"response_format":{"type":"json_schema"}}`, 400, "'json_schema' field must be provided", "BadRequestError", "response_format"},
		{"chat", chat, `{` + user + `}`, 200, "", "", ""},
		{"messages null", chat, `{"messages":null}`, 400, "not iterable", "BadRequestError", ""},
		{"messages empty", chat, `{"messages":[]}`, 400, "at least one message", "BadRequestError", ""},
		{"message of text", chat, `{"messages":["hi"]}`, 400, "", "Bad Request", "body.messages.0"},
		{"message without role", chat, `{"messages":[{"content":"hi"}]}`, 400, "", "Bad Request", "body.messages.0.role"},
		{"role of a number", chat, `{"messages":[{"role":1,"content":"hi"}]}`, 400, "", "Bad Request", "body.messages.0.role"},
		{"unknown role", chat, `{"messages":[{"role":"critic","content":"hi"}]}`, 200, "", "", ""},
		{"content parts", chat, `{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]}`, 200, "", "", ""},
		{"content of a number", chat, `{"messages":[{"role":"user","content":5}]}`, 400, "", "Bad Request", "body.messages.0.content.str"},
		{"image", chat, `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:"}}]}]}`, 400, "not a multimodal model", "BadRequestError", ""},
		{"unknown part", chat, `{"messages":[{"role":"user","content":[{"type":"smell"}]}]}`, 400, "Unknown part type: smell", "BadRequestError", ""},
		{"null content with tool calls", chat, `{"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]}]}`, 200, "", "", ""},
		{"broken JSON inside messages", chat, `{"messages":[{"role":"user","content":"a\x"}]}`, 400, "", "Bad Request", "body"},
		{"chat max_tokens 0", chat, `{` + user + `,"max_tokens":0}`, 400, "max_tokens must be at least 1, got 0.", "BadRequestError", "max_tokens"},
		{"max_completion_tokens wins", chat, `{` + user + `,"max_tokens":0,"max_completion_tokens":3}`, 200, "", "", ""},
		{"max_completion_tokens 0", chat, `{` + user + `,"max_tokens":9,"max_completion_tokens":0}`, 400, "max_tokens must be at least 1, got 0.", "BadRequestError", "max_tokens"},
		{"chat fills the context", chat, `{"messages":[{"role":"user","content":"` + strings.Repeat("x ", 70) + `"}]}`, 400, "You passed", "BadRequestError", "input_tokens"},
		{"tool_choice without tools", chat, `{` + user + `,"tool_choice":"auto"}`, 400, "When using `tool_choice`, `tools` must be set.", "BadRequestError", "tool_choice"},
		{"empty tools", chat, `{` + user + `,"tools":[]}`, 400, "`tools` must not be an empty array.", "BadRequestError", "tools"},
		{"tools of a wrong shape", chat, `{` + user + `,"tools":[{"type":"function"}]}`, 400, "", "Bad Request", "body.tools.0.function"},
		{"unknown tool_choice", chat, `{` + user + `,` + tool + `,"tool_choice":"maybe"}`, 400, "Invalid value for `tool_choice`", "BadRequestError", "tool_choice"},
		{"named tool", chat, `{` + user + `,` + tool + `,"tool_choice":{"type":"function","function":{"name":"f"}}}`, 200, "", "", ""},
		{"named tool not among the tools", chat, `{` + user + `,` + tool + `,"tool_choice":{"type":"function","function":{"name":"g"}}}`, 400, "does not match any of the specified `tools`", "BadRequestError", "tool_choice"},
		{"required tool cut", chat, `{` + user + `,` + tool + `,"tool_choice":"required","max_tokens":1}`, 400, "Invalid JSON", "BadRequestError", ""},
		{"continue and generate", chat, `{` + user + `,"continue_final_message":true,"add_generation_prompt":true}`, 400, "Cannot set both", "BadRequestError", ""},
		{"continue with the default", chat, `{` + user + `,"continue_final_message":true}`, 400, "not compatible", "BadRequestError", ""},
		{"continue", chat, `{` + user + `,"continue_final_message":true,"add_generation_prompt":false}`, 200, "", "", ""},
		{"tokenize", "/tokenize", `{"prompt":"a b"}`, 200, "", "", ""},
		{"tokenize for an unknown model", "/tokenize", `{"prompt":"a","model":"nope"}`, 404, "does not exist", "NotFoundError", "model"},
		{"detokenize", "/detokenize", `{"tokens":[100,101]}`, 200, "", "", ""},
		{"detokenize text", "/detokenize", `{"tokens":"x"}`, 400, "", "Bad Request", "body.tokens"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := post(t, c, s.URL()+tt.path, "", tt.body)
			if r.status != tt.status {
				t.Fatalf("status %d, not %d: %s", r.status, tt.status, r.body)
			}
			if tt.status == http.StatusOK {
				if !json.Valid([]byte(r.body)) {
					t.Errorf("not JSON: %s", r.body)
				}
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
			if err := json.Unmarshal([]byte(r.body), &e); err != nil {
				t.Fatalf("%s: %v", r.body, err)
			}
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
		{"policy", fakevllm.Options{KVLoadFailurePolicy: "cry"}},
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
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s %q, %s: %q, want %q", tt.mode, tt.role, tt.kv, got, tt.want)
		}
	}
}
