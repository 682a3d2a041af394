package request_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/request"
)

func TestParseRequestReads(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, body string
		kind       openai.Kind
		want       request.Request
	}{
		{name: "empty object", body: `{}`},
		{name: "model and stream", body: `{"model":"m","stream":true}`, want: request.Request{Model: "m", Stream: true}},
		{name: "null is absent", body: `{"model":null,"stream":null,"max_tokens":null,"stream_options":null}`},
		{name: "escaped names", body: `{"mod\u0065l":"m","\u0073tream":true}`, want: request.Request{Model: "m", Stream: true}},
		{name: "escaped value", body: `{"model":"a\/\u00e9\ud83d\ude00"}`, want: request.Request{Model: "a/é😀"}},
		{name: "last duplicate counts", body: `{"model":"a","stream":true,"model":"b","stream":false}`, want: request.Request{Model: "b"}},
		{name: "lax booleans", body: `{"stream":"yes","stream_options":{"include_usage":1}}`, want: request.Request{Stream: true, IncludeUsage: true}},
		{name: "lax integers", body: `{"max_tokens":"5"}`, want: request.Request{MaxTokens: 5}},
		{name: "echo of the prompt alone", body: `{"max_tokens":0,"echo":true,"prompt":"x"}`, want: request.Request{Bypass: "echo"}},
		{name: "echo of the prompt alone, min_tokens for the engine to judge", body: `{"max_tokens":0,"min_tokens":1,"echo":true}`, want: request.Request{Bypass: "echo"}},
		{name: "numbers in other spellings", body: `{"stream":10e-1,"echo":-0.0,"max_tokens":" 1_0 "}`, want: request.Request{Stream: true, MaxTokens: 10}},
		{name: "float integer", body: `{"max_tokens":5.0}`, want: request.Request{MaxTokens: 5}},
		{name: "exponent integer", body: `{"max_tokens":1e3}`, want: request.Request{MaxTokens: 1000}},
		{name: "chat limit wins", kind: openai.Chat, body: `{"messages":[],"max_tokens":0,"max_completion_tokens":7}`, want: request.Request{Scanned: request.Scanned{Kind: openai.Chat}, MaxTokens: 7}},
		{name: "completions ignore the chat limit", body: `{"max_completion_tokens":"nonsense"}`},
		{name: "empty stream options are falsy", body: `{"stream_options":{}}`},
		{name: "forced tool by word", kind: openai.Chat, body: `{"messages":[],"tool_choice":"required"}`, want: request.Request{Scanned: request.Scanned{Kind: openai.Chat}, CutReason: "forced_tool"}},
		{name: "forced tool by name", kind: openai.Chat, body: `{"messages":[],"tool_choice":{"type":"function","function":{"name":"f"}}}`, want: request.Request{Scanned: request.Scanned{Kind: openai.Chat}, CutReason: "forced_tool"}},
		{name: "free tool", kind: openai.Chat, body: `{"messages":[],"tool_choice":"auto"}`, want: request.Request{Scanned: request.Scanned{Kind: openai.Chat}}},
		{name: "n=1 is ordinary", body: `{"n":1,"best_of":1,"echo":false,"prompt_logprobs":null}`},
		{name: "n", body: `{"n":2}`, want: request.Request{Bypass: "n"}},
		{name: "n as text", body: `{"n":"2"}`, want: request.Request{Bypass: "n"}},
		{name: "best_of", body: `{"best_of":3}`, want: request.Request{Bypass: "best_of"}},
		{name: "beam search", body: `{"use_beam_search":true}`, want: request.Request{Bypass: "beam_search"}},
		{name: "echo", body: `{"echo":true}`, want: request.Request{Bypass: "echo"}},
		{name: "prompt logprobs, even none of them", body: `{"prompt_logprobs":0}`, want: request.Request{Bypass: "prompt_logprobs"}},
		{name: "one prompt", body: `{"prompt":"a"}`},
		{name: "one prompt in a list", body: `{"prompt":[ "a" ]}`},
		{name: "one prompt of ids", body: `{"prompt":[1, 2,3]}`},
		{name: "one prompt of ids in a list", body: `{"prompt":[[1,2,3]]}`},
		{name: "no prompt in a list", body: `{"prompt":[]}`},
		{name: "several texts", body: `{"prompt":["a","b"]}`, want: request.Request{Bypass: "several_prompts"}},
		{name: "several id lists", body: `{"prompt":[[1],[2]]}`, want: request.Request{Bypass: "several_prompts"}},
		{name: "one prompt of embeddings", body: `{"prompt_embeds":"AA=="}`},
		{name: "one prompt of embeddings in a list", body: `{"prompt":"","prompt_embeds":["AA=="]}`},
		{name: "no embeddings", body: `{"prompt":"a","prompt_embeds":null}`},
		{name: "no embeddings in a list", body: `{"prompt":"a","prompt_embeds":[ ]}`},
		{name: "several embeddings", body: `{"prompt_embeds":["AA==","AQ=="],"stop":["a"]}`, want: request.Request{Bypass: "several_prompts"}},
		{name: "embeddings and a text", body: `{"prompt_embeds":"AA==","prompt":"a"}`, want: request.Request{Bypass: "several_prompts"}},
		{name: "embeddings and ids", body: `{"prompt":[1,2],"prompt_embeds":["AA=="]}`, want: request.Request{Bypass: "several_prompts"}},
		{name: "a chat's embeddings mean nothing", kind: openai.Chat, body: `{"messages":[],"prompt_embeds":["a","b"]}`, want: request.Request{Scanned: request.Scanned{Kind: openai.Chat}}},
		{name: "a chat's prompt means nothing", kind: openai.Chat, body: `{"messages":[],"prompt":["a","b"]}`, want: request.Request{Scanned: request.Scanned{Kind: openai.Chat}}},
		{name: "space everywhere", body: " \r\n\t{ \"model\" : \"m\" , \"stream\" : true } \n", want: request.Request{Model: "m", Stream: true}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			checkRead(t, tc.kind, tc.body, tc.want)
		})
	}
}

// checkRead parses a request and compares the fields that describe it.
func checkRead(t *testing.T, kind openai.Kind, body string, want request.Request) {
	t.Helper()
	r, err := request.Parse(kind, []byte(body))
	require.NoError(t, err, body)
	assert.Equal(t, want, request.Request{
		Scanned: request.Scanned{Kind: r.Kind}, Model: r.Model, Stream: r.Stream, IncludeUsage: r.IncludeUsage,
		MaxTokens: r.MaxTokens, CutReason: r.CutReason, Bypass: r.Bypass,
	}, body)
}

func TestParseRequestRefuses(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, body, param, message string
	}{
		{name: "nested too deep", body: `{"a":` + strings.Repeat("[", 600) + strings.Repeat("]", 600) + `}`, message: "more than 512 levels"},
		{name: "control field behind many containers", body: `{` + strings.Repeat(`"vllm_xargs":{},`, 8) + `"vllm_xargs":{"kv_transfer_params":1}}`, message: "more than 8 objects"},
		{name: "control field inside many containers", body: strings.Repeat(`{"vllm_xargs":`, 9) + `{"kv_transfer_params":1}` + strings.Repeat("}", 9), message: "more than 8 objects"},
		{name: "many control fields in one container", body: `{"vllm_xargs":{` + strings.Repeat(`"disagg_spec":1,`, 5000) + `"b":1}}`, message: "more than 4096 fields"},
		{name: "many fields", body: `{` + strings.Repeat(`"a":1,`, 5000) + `"b":1}`, message: "more than 4096 fields"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			_, err := request.Parse(openai.Completion, []byte(tc.body))
			var e *openai.Error
			require.True(t, errors.As(err, &e), "error %v, want *openai.Error", err)
			if e.Status != 400 || e.Type != openai.TypeBadRequest || !e.Final || !strings.Contains(e.Message, tc.message) {
				t.Fatalf("got %+v, want a message with %q", e, tc.message)
			}
		})
	}
}

func TestEdit(t *testing.T) {
	t.Parallel()
	prefill := func(r *request.Request) *request.Edit {
		e := r.NewEdit()
		e.Set(request.FieldMaxTokens, "1")
		e.Replace(request.FieldMaxCompletionTokens, "1")
		e.Delete(request.FieldStreamOptions)
		e.Set(request.FieldKVTransferParams, `{"x":1}`)
		return e
	}
	none := func(r *request.Request) *request.Edit { return r.NewEdit() }
	for _, tc := range []struct {
		name, body, want string
		edit             func(*request.Request) *request.Edit
	}{
		{"nothing to do", `{ "a" : 1 }`, `{ "a" : 1 }`, none},
		{"empty object, nothing to do", ` { } `, ` { } `, none},
		{"control field alone", `{"kv_transfer_params":{"do_remote_prefill":true}}`, `{}`, none},
		{"control field first", `{"kv_transfer_params":1 , "a":2}`, `{"a":2}`, none},
		{"control field last", `{"a":2 , "kv_transfer_params":1 }`, `{"a":2 }`, none},
		{"control field between", `{"a":2,"kv_transfer_params":1,"b":3}`, `{"a":2,"b":3}`, none},
		{"control fields run at the start", `{"bootstrap_host":1,"bootstrap_port":2,"a":3,"bootstrap_room":4}`, `{"a":3}`, none},
		{"control fields run at the end", `{"a":3,"bootstrap_host":1,"disagg_spec":2}`, `{"a":3}`, none},
		{"whatever begins with bootstrap_", `{"bootstrap_pair_key":1,"a":3,"bootstrap_":2,"bootstrap":4}`, `{"a":3,"bootstrap":4}`, none},
		{"of the encoder's cache", `{"ec_transfer_params":{"consumer_zmq":"x"},"a":1}`, `{"a":1}`, none},
		{"of the encoder's cache, nested", `{"sampling_params":{"extra_args":{"ec_transfer_params":1,"b":2}},"vllm_xargs":{"ec_transfer_params":1}}`, `{"sampling_params":{"extra_args":{"b":2}},"vllm_xargs":{}}`, none},
		{"in objects within objects", `{"vllm_xargs":{"sampling_params":{"extra_args":{"disagg_spec":1,"b":{"disagg_spec":2}}}}}`, `{"vllm_xargs":{"sampling_params":{"extra_args":{"b":{"disagg_spec":2}}}}}`, none},
		{"priority", `{"a":1,"priority":-1,"vllm_xargs":{"priority":2}}`, `{"a":1,"vllm_xargs":{"priority":2}}`, none},
		{"priority of who may", `{"a":1,"priority":-1}`, `{"a":1,"priority":-1}`, func(r *request.Request) *request.Edit {
			r.KeepPriority = true
			return r.NewEdit()
		}},
		{"all control fields", `{"bootstrap_host":1,"disagg_spec":2,"kv_transfer_params":3}`, `{}`, none},
		{"duplicates of a control field", `{"kv_transfer_params":1,"a":1,"kv_transfer_params":2}`, `{"a":1}`, none},
		{"escaped control field", `{"kv_transfer\u005fparams":1,"a":1}`, `{"a":1}`, none},
		{"under sampling_params", `{"sampling_params":{"extra_args":{"kv_transfer_params":{"a":1},"b":2}}}`, `{"sampling_params":{"extra_args":{"b":2}}}`, none},
		{"under vllm_xargs", `{"vllm_xargs":{"b":2,"kv_transfer_params":"x"},"c":3}`, `{"vllm_xargs":{"b":2},"c":3}`, none},
		{"same name elsewhere stays", `{"metadata":{"kv_transfer_params":1},"messages":[{"kv_transfer_params":2}]}`, `{"metadata":{"kv_transfer_params":1},"messages":[{"kv_transfer_params":2}]}`, none},
		{"a text that looks like one stays", `{"prompt":"\"kv_transfer_params\":1,"}`, `{"prompt":"\"kv_transfer_params\":1,"}`, none},
		{"set where absent", `{"a":1}`, `{"max_tokens":1,"kv_transfer_params":{"x":1},"a":1}`, prefill},
		{"set in an empty object", `{}`, `{"max_tokens":1,"kv_transfer_params":{"x":1}}`, prefill},
		{"set where only a control field was", `{"kv_transfer_params":9}`, `{"max_tokens":1,"kv_transfer_params":{"x":1}}`, prefill},
		{"replace", `{"max_tokens": 50 ,"max_completion_tokens":60}`, `{"kv_transfer_params":{"x":1},"max_tokens": 1 ,"max_completion_tokens":1}`, prefill},
		{"every duplicate", `{"max_tokens":5,"b":1,"max_tokens":6}`, `{"kv_transfer_params":{"x":1},"max_tokens":1,"b":1,"max_tokens":1}`, prefill},
		{"delete", `{"stream":true,"stream_options":{"include_usage":true},"max_tokens":2}`, `{"kv_transfer_params":{"x":1},"stream":true,"max_tokens":1}`, prefill},
		{"large integers, odd spacing and unknown fields", `{"seed":9007199254740993,	"x":1.10e+2,"max_tokens":5,"ü":"\u00fc"}`, `{"kv_transfer_params":{"x":1},"seed":9007199254740993,	"x":1.10e+2,"max_tokens":1,"ü":"\u00fc"}`, prefill},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r, err := request.ParseOther([]byte(tc.body))
			require.NoError(t, err)
			b := tc.edit(r).Body()
			require.Equal(t, tc.want, string(b.Bytes()))
			require.Equal(t, int64(len(tc.want)), b.Len(), "Len", len(tc.want))
		})
	}
}

func TestLegsShareTheBody(t *testing.T) {
	t.Parallel()
	body := []byte(`{"prompt":"` + strings.Repeat("x", 1<<20) + `","max_tokens":5}`)
	r, err := request.Parse(openai.Completion, body)
	require.NoError(t, err)
	e := r.NewEdit()
	e.Set(request.FieldMaxTokens, "1")
	for _, seg := range e.Body().Segments() {
		require.False(t, len(seg) > 1<<10 && &seg[0] != &body[0], "a leg holds a copy of the prompt")
	}
}
