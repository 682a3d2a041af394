package fakevllm_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
)

var update = flag.Bool("update", false, "write golden files")

// golden compares got with a golden file, except for creation times.
func golden(t *testing.T, name, got string) {
	t.Helper()
	got = regexp.MustCompile(`"created":\d+`).ReplaceAllString(got, `"created":1`)
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o750))
		require.NoError(t, os.WriteFile(path, []byte(got), 0o600))
	}
	expected, err := os.ReadFile(path) //nolint:gosec // a name from this file
	require.NoError(t, err)
	assert.Equal(t, "", cmp.Diff(string(expected), got), "%s (-golden +got)", name)
}

const tools = `"tools":[{"type":"function","function":{"name":"look","parameters":{"type":"object"}}},{"type":"function","function":{"name":"leap"}}]`

// TestGolden compares every kind of answer with golden files.
func TestGolden(t *testing.T) {
	t.Parallel()
	// Without a shared pool, so that cached tokens don't depend on the order.
	s := fakevllm.StartTest(t, fakevllm.Options{PromptTokensDetails: true, Mode: fakevllm.NIXL})
	c := client(t)
	const text, chat = "/v1/completions", "/v1/chat/completions"
	const ask = `"messages":[{"role":"system","content":"be brief"},{"role":"user","content":"hi \"there\""}]`
	for _, tt := range []struct{ name, path, body string }{
		{"chat.sse", chat, `{` + ask + `,"max_tokens":5,"stream":true}`},
		{"chat_usage.sse", chat, `{` + ask + `,"max_tokens":2,"stream":true,"stream_options":{"include_usage":true}}`},
		{"chat_continuous.sse", chat, `{` + ask + `,"max_tokens":2,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`},
		{"chat_n.sse", chat, `{` + ask + `,"max_tokens":2,"n":2,"stream":true}`},
		{"chat_logprobs.sse", chat, `{` + ask + `,"max_tokens":2,"logprobs":true,"top_logprobs":1,"return_token_ids":true,"stream":true}`},
		{"chat_tool_required.sse", chat, `{` + ask + `,` + tools + `,"tool_choice":"required","stream":true}`},
		{"chat_tool_named_cut.sse", chat, `{` + ask + `,` + tools + `,"tool_choice":{"type":"function","function":{"name":"leap"}},"max_tokens":3,"stream":true}`},
		{"text.sse", text, `{"prompt":"once","max_tokens":3,"stream":true}`},
		{"text_echo.sse", text, `{"prompt":"once \"upon\"","max_tokens":2,"echo":true,"logprobs":1,"return_token_ids":true,"stream":true,"stream_options":{"include_usage":true}}`},
		{"text_prompts.sse", text, `{"prompt":["once","twice"],"n":2,"max_tokens":2,"stream":true}`},
		{"chat.json", chat, `{` + ask + `,"max_tokens":3}`},
		{"chat_full.json", chat, `{` + ask + `,"max_tokens":2,"n":2,"logprobs":true,"top_logprobs":2,"prompt_logprobs":1,"return_token_ids":true}`},
		{"chat_tool_required.json", chat, `{` + ask + `,` + tools + `,"tool_choice":"required"}`},
		{"chat_tool_named.json", chat, `{` + ask + `,` + tools + `,"tool_choice":{"type":"function","function":{"name":"leap"}}}`},
		{"text.json", text, `{"prompt":"once","max_tokens":3}`},
		{"text_full.json", text, `{"prompt":[[100,200],[300]],"max_tokens":2,"echo":true,"logprobs":2,"prompt_logprobs":1,"return_token_ids":true}`},
		{"text_echo_only.json", text, `{"prompt":"once upon","max_tokens":0,"echo":true}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := post(t, c, s.URL()+tt.path, "R-1", tt.body)
			require.True(t, r.status == 200 && r.err == nil, "%d %v %s", r.status, r.err, r.body)
			golden(t, tt.name, r.body)
			if strings.HasSuffix(tt.name, ".json") {
				assert.True(t, json.Valid([]byte(r.body)), "no JSON")
				assert.Equal(t, "application/json", r.header.Get("Content-Type"), "content type")
				return
			}
			events(t, r.body)
			assert.Equal(t, "text/event-stream; charset=utf-8", r.header.Get("Content-Type"), "content type")
		})
	}
}

// TestExpectedText_MatchesAnswers: for many bodies, the stream, the whole response and the expected
// answer, which is computed without a request, agree.
func TestExpectedText_MatchesAnswers(t *testing.T) {
	t.Parallel()
	s := fakevllm.StartTest(t, fakevllm.Options{MaxModelLen: 4096})
	c := client(t)
	bodies := []string{
		`"prompt":"once upon a time","max_tokens":100`, `"prompt":["a","b","c"],"n":3`, `"prompt":[5000,6000,7000],"max_tokens":900`,
		`"prompt":"x","max_tokens":60,"ignore_eos":true,"stop":["a b","ba","e\""]`, `"prompt":"x y","max_tokens":50,"min_tokens":50`,
		`"prompt":"echo me 🙂","echo":true`, `"prompt":"x","max_tokens":500,"stop":"oz","include_stop_str_in_output":true`,
		user, user + `,"n":2,"max_completion_tokens":40`, user + `,` + tools + `,"tool_choice":"required"`, user + `,` + tools,
		`"messages":[{"role":"user","content":[{"type":"text","text":"é 🙂 \n"}]},{"role":"assistant","content":"so far "}],"continue_final_message":true,"add_generation_prompt":false`,
	}
	for i, body := range bodies {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			path := "/v1/completions"
			if strings.HasPrefix(body, `"mess`) {
				path = "/v1/chat/completions"
			}
			expected, err := fakevllm.ExpectedAt(path, []byte("{"+body+"}"), 4096)
			require.NoError(t, err)
			whole := decode(t, post(t, c, s.URL()+path, "", "{"+body+"}"))
			stream := events(t, post(t, c, s.URL()+path, "", "{"+body+`,"stream":true,"stream_options":{"include_usage":true}}`).body)
			require.Equal(t, len(expected), len(whole.Choices), "choices")
			completion := 0
			for i, e := range expected {
				completion += len(e.Tokens)
				got := whole.Choices[i]
				if got.Text+got.Message.Content != e.Text || got.FinishReason != e.FinishReason || got.Index != i {
					t.Errorf("choice %d in one piece is %q %s, not %q %s", i, got.Text+got.Message.Content, got.FinishReason, e.Text, e.FinishReason)
				}
				if e.ToolName != "" {
					call := got.Message.ToolCalls[0].Function
					if call.Name != e.ToolName || call.Arguments != e.ToolArguments || !json.Valid([]byte(call.Arguments)) {
						t.Errorf("call is %+v, not %+v", call, e)
					}
				}
				if streamed, finish := text(stream, i); streamed != e.Text || finish != e.FinishReason {
					t.Errorf("choice %d streamed is %q %s, not %q %s", i, streamed, finish, e.Text, e.FinishReason)
				}
			}
			last := stream[len(stream)-1]
			if whole.Usage.Completion != completion || last.Usage == nil || *last.Usage != whole.Usage || len(last.Choices) != 0 {
				t.Errorf("usage %+v and %+v, not %d tokens", whole.Usage, last.Usage, completion)
			}
		})
	}
}

func TestDefaultMaxTokens(t *testing.T) {
	t.Parallel()
	s := fakevllm.StartTest(t, fakevllm.Options{MaxModelLen: 100})
	c := client(t)
	r := decode(t, post(t, c, s.URL()+"/v1/completions", "", `{"prompt":"x","ignore_eos":true}`))
	assert.Equal(t, 16, r.Usage.Completion, "completions default to")
	r = decode(t, post(t, c, s.URL()+"/v1/chat/completions", "", `{`+user+`,"ignore_eos":true}`))
	assert.Equal(t, 100, r.Usage.Total, "chat fills %d of 100", r.Usage.Total)
}

func TestRequestIDs(t *testing.T) {
	t.Parallel()
	s := fakevllm.StartTest(t, fakevllm.Options{})
	c := client(t)
	for _, tt := range []struct{ name, path, header, body, id string }{
		{"chat", "/v1/chat/completions", "abc", `{` + user + `}`, `^chatcmpl-abc$`},
		{"completions", "/v1/completions", "abc", `{"prompt":"x"}`, `^cmpl-abc$`},
		{"quotes", "/v1/completions", `a"b\`, `{"prompt":"x"}`, `^cmpl-a"b\\$`},
		{"body", "/v1/completions", "", `{"prompt":"x","request_id":"mine"}`, `^cmpl-mine$`},
		{"header before body", "/v1/completions", "h", `{"prompt":"x","request_id":"mine"}`, `^cmpl-h$`},
		{"random", "/v1/completions", "", `{"prompt":"x"}`, `^cmpl-[0-9a-f]{32}$`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := decode(t, post(t, c, s.URL()+tt.path, tt.header, tt.body))
			assert.True(t, regexp.MustCompile(tt.id).MatchString(r.ID), "id %q", r.ID)
		})
	}
}

func TestTokenizeRoutes(t *testing.T) {
	t.Parallel()
	s := fakevllm.StartTest(t, fakevllm.Options{})
	c := client(t)
	var got struct {
		Count  int      `json:"count"`
		Max    int      `json:"max_model_len"`
		Tokens []int    `json:"tokens"`
		Strs   []string `json:"token_strs"`
	}
	require.NoError(t, json.Unmarshal([]byte(post(t, c, s.URL()+"/tokenize", "", `{"prompt":"one two","return_token_strs":true}`).body), &got))
	if expected := model.Tokenize("one two"); !slices.Equal(got.Tokens, expected) || got.Count != 2 || len(got.Strs) != 2 || got.Max != 1<<20 {
		t.Errorf("got %+v, expected %v", got, expected)
	}
	require.NoError(t, json.Unmarshal([]byte(post(t, c, s.URL()+"/tokenize", "", `{`+user+`}`).body), &got))
	expected := fakevllm.ChatPrompt([]fakevllm.Message{{Role: "user", Content: "hi"}}, false)
	assert.True(t, slices.Equal(got.Tokens, expected), "got %+v, expected %v", got, expected)
	r := post(t, c, s.URL()+"/detokenize", "", `{"tokens":[100,101]}`)
	assert.Equal(t, `{"prompt":"`+model.Detokenize([]int{100, 101})+`"}`, r.body, "detokenized")
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	s := fakevllm.StartTest(t, fakevllm.Options{Models: []string{`m"x`}})
	c := client(t)
	for range 3 {
		decode(t, post(t, c, s.URL()+"/v1/completions", "", `{"prompt":"a b","max_tokens":5,"ignore_eos":true}`))
	}
	body := get(t, c, s.URL()+"/metrics").body
	for _, line := range []string{
		`vllm:num_requests_running{model_name="m\"x",engine="0"} 0`, `vllm:num_requests_waiting{model_name="m\"x",engine="0"} 0`,
		`vllm:generation_tokens_total{model_name="m\"x",engine="0"} 15`, `vllm:prompt_tokens_total{model_name="m\"x",engine="0"} 6`,
		`vllm:request_success_total{model_name="m\"x",engine="0",finished_reason="length"} 3`,
		`vllm:time_to_first_token_seconds_bucket{model_name="m\"x",engine="0",le="+Inf"} 3`, `vllm:time_to_first_token_seconds_count{model_name="m\"x",engine="0"} 3`,
	} {
		assert.Contains(t, body, line+"\n", "no %s in\n%s", line, body)
	}
	assert.True(t, regexp.MustCompile(`(?m)^process_start_time_seconds \d{10}\.\d{3}$`).MatchString(body),
		"no process_start_time_seconds")
}

func TestRecord(t *testing.T) {
	t.Parallel()
	s := fakevllm.StartTest(t, fakevllm.Options{RecordLimit: 3})
	c := client(t)
	for i := range 5 {
		post(t, c, s.URL()+"/v1/completions", fmt.Sprintf("r%d", i), fmt.Sprintf(` { "prompt" : "%d" , "x":12345678901234567890 } `, i))
	}
	got := s.Requests()
	if len(got) != 3 || got[0].Header.Get("X-Request-Id") != "r2" || got[2].Header.Get("X-Request-Id") != "r4" || got[2].Path != "/v1/completions" ||
		string(got[2].Body) != ` { "prompt" : "4" , "x":12345678901234567890 } ` {
		t.Errorf("recorded %+v", got)
	}
	s.ForgetRequests()
	assert.Equal(t, 0, len(s.Requests()), "nothing was forgotten")
	none := fakevllm.StartTest(t, fakevllm.Options{RecordLimit: fakevllm.RecordNone})
	post(t, c, none.URL()+"/v1/completions", "", `{"prompt":"x"}`)
	assert.Equal(t, 0, len(none.Requests()), "recorded with RecordNone")
}
