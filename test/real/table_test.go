package real_test

import (
	"net/http"
	"strconv"
	"strings"
)

// request is a line of the table: a request that is sent to a single vLLM and to the proxy.
type request struct {
	name         string
	method, path string
	contentType  string
	body         string
	short        bool // part of the short form
}

// long returns a prompt of some hundred tokens that begins with its own word, so that no other request has
// computed any of it.
func long(word string) string {
	return word + strings.Repeat(" The copyright owner grants a license to use the work in any form, and the notice shall stay with it.", 20)
}

// table returns all requests in the order in which they are sent.
func table() (out []request) {
	out = append(out, completions()...)
	out = append(out, chats()...)
	out = append(out, refused()...)
	return append(out, others()...)
}

const both = "+" // prefix of a name: send the request again as a stream

// posts returns requests with the given names and body members. A name with the prefix + is also sent as a
// stream; one with ! is part of the short form.
func posts(path, common string, list [][2]string) (out []request) {
	for _, c := range list {
		name, twice := strings.CutPrefix(c[0], both)
		name, inShort := strings.CutPrefix(name, "!")
		r := request{
			method: http.MethodPost, path: path, contentType: "application/json",
			name: strings.TrimPrefix(path, "/v1/") + "/" + name, body: "{" + common + c[1] + "}", short: inShort,
		}
		out = append(out, r)
		if twice {
			r.name += "/stream"
			r.body = "{" + common + c[1] + `,"stream":true,"stream_options":{"include_usage":true}}`
			out = append(out, r)
		}
	}
	return out
}

const prompt = `"prompt":"The license of this work",`

func completions() []request {
	const common = `"model":"tiny","temperature":0,`
	return posts("/v1/completions", common, [][2]string{
		{"+!plain", prompt + `"max_tokens":20`},
		{"+!long", `"prompt":"` + long("Completion:") + `","max_tokens":30`},
		{"+default length", `"prompt":"Each contributor"`},
		{"+one token", prompt + `"max_tokens":1`},
		{"+!logprobs", prompt + `"max_tokens":12,"logprobs":3`},
		{"+logprobs 0", prompt + `"max_tokens":12,"logprobs":0`},
		{"+echo", prompt + `"max_tokens":8,"echo":true`},
		{"+echo logprobs", prompt + `"max_tokens":8,"echo":true,"logprobs":2`},
		{"echo alone", prompt + `"max_tokens":0,"echo":true,"logprobs":1`},
		{"+n", prompt + `"max_tokens":10,"n":3,"temperature":0.7,"seed":3`},
		{"+n seeded", prompt + `"max_tokens":10,"n":2,"seed":11,"temperature":0.8`},
		{"+!list", `"prompt":["The license","Each contributor","You may"],"max_tokens":10`},
		{"+list of one", `"prompt":["The license of this work"],"max_tokens":10`},
		{"list n", `"prompt":["The license","You may"],"n":2,"max_tokens":8,"temperature":0.7,"seed":3`},
		{"+token ids", `"prompt":[300,301,302,303,304,305],"max_tokens":10`},
		{"+list of token ids", `"prompt":[[300,301,302],[400,401]],"max_tokens":10`},
		{"+stop", `"prompt":"Each contributor","max_tokens":60,"stop":"a"`},
		{"+stop list", `"prompt":"Each contributor","max_tokens":60,"stop":["zzz","e"],"include_stop_str_in_output":true`},
		{"stop token", `"prompt":"Each contributor","max_tokens":60,"stop_token_ids":[` + manyTokens() + `]`},
		{"stop token, min_tokens", `"prompt":"Each contributor","max_tokens":60,"min_tokens":7,"stop_token_ids":[` + manyTokens() + `]`},
		{"+seed", prompt + `"max_tokens":16,"seed":42,"temperature":1`},
		{"seed top_p top_k", prompt + `"max_tokens":16,"seed":7,"temperature":0.9,"top_p":0.8,"top_k":20`},
		{"min_p", prompt + `"max_tokens":16,"seed":7,"temperature":0.9,"min_p":0.1`},
		{"min_tokens", prompt + `"max_tokens":16,"min_tokens":12`},
		{"+ignore_eos", prompt + `"max_tokens":16,"ignore_eos":true`},
		{"penalties", prompt + `"max_tokens":24,"repetition_penalty":1.3,"presence_penalty":0.5,"frequency_penalty":0.4`},
		{"logit_bias", prompt + `"max_tokens":8,"logit_bias":{"400":100}`},
		{"bad_words", prompt + `"max_tokens":12,"bad_words":["a"]`},
		{"allowed_token_ids", prompt + `"max_tokens":8,"allowed_token_ids":[400,401,402]`},
		{"+regex", prompt + `"max_tokens":24,"structured_outputs":{"regex":"[a-c]{3,6}"}`},
		{"+choice", prompt + `"max_tokens":24,"structured_outputs":{"choice":["yes","no"]}`},
		{"+json", prompt + `"max_tokens":60,"structured_outputs":{"json":` + schema + `}`},
		{"grammar", prompt + `"max_tokens":24,"structured_outputs":{"grammar":"root ::= \"a\" | \"b\""}`},
		{"prompt_logprobs", prompt + `"max_tokens":4,"prompt_logprobs":2`},
		{"return_token_ids", prompt + `"max_tokens":6,"return_token_ids":true`},
		{"tokens as ids", prompt + `"max_tokens":6,"logprobs":1,"return_tokens_as_token_ids":true`},
		{"+special tokens", prompt + `"max_tokens":6,"skip_special_tokens":false,"spaces_between_special_tokens":false`},
		{"+cache_salt", prompt + `"max_tokens":6,"cache_salt":"mine"`},
		{"truncated", `"prompt":"` + long("Truncated:") + `","max_tokens":6,"truncate_prompt_tokens":20`},
		{"priority 0", prompt + `"max_tokens":6,"priority":0`},
		{"+unknown members", prompt + `"max_tokens":6,"user":"me","best_of":1,"nobody_knows":[1,{"a":null}]`},
		{"unicode", `"prompt":"déjà vu 日本 🎉 \ud83d\ude00 \u0000","max_tokens":8`},
		{"usage in every chunk", prompt + `"max_tokens":8,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`},
		{"stream without usage", prompt + `"max_tokens":8,"stream":true`},
		{"own transfer parameters", prompt + `"max_tokens":8,"kv_transfer_params":null`},
		{"numbers in other spellings", prompt + `"max_tokens":8.0,"min_tokens":"0_1","ignore_eos":1e0`},
		{"nulls", prompt + `"max_tokens":8,"stop":null,"seed":null,"n":null,"stream":null,"stream_options":null,"logprobs":null`},
	})
}

// schema can be satisfied by a model with random weights in a few tokens.
const schema = `{"type":"object","properties":{"ok":{"type":"boolean"},"kind":{"enum":["a","b"]}},"required":["ok","kind"],"additionalProperties":false}`

// manyTokens returns enough token IDs that one of them is sampled soon.
func manyTokens() string {
	var out strings.Builder
	for id := 300; id < 1600; id += 9 {
		out.WriteString(strings.Repeat(",", min(out.Len(), 1)) + strconv.Itoa(id))
	}
	return out.String()
}

const (
	hello = `"messages":[{"role":"user","content":"What may I do with the work?"}],`
	tools = `"tools":[{"type":"function","function":{"name":"look","description":"looks","parameters":` + schema + `}}],`
)

func chats() []request {
	const common = `"model":"tiny","temperature":0,`
	out := posts("/v1/chat/completions", common, [][2]string{
		{"+!plain", hello + `"max_tokens":20`},
		{"+!long", `"messages":[{"role":"user","content":"` + long("Chat:") + `"}],"max_tokens":20`},
		{"+max_completion_tokens", hello + `"max_completion_tokens":12`},
		{"+turns", `"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"The license?"},{"role":"assistant","content":"Yes."},{"role":"user","content":"And the work?"}],"max_tokens":16`},
		{"+logprobs", hello + `"max_tokens":8,"logprobs":true,"top_logprobs":3`},
		{"logprobs alone", hello + `"max_tokens":8,"logprobs":true`},
		{"prompt_logprobs", hello + `"max_tokens":4,"prompt_logprobs":1`},
		{"+n", hello + `"max_tokens":10,"n":2,"temperature":0.7,"seed":3`},
		{"+stop", hello + `"max_tokens":60,"stop":["e"]`},
		{"+seed", hello + `"max_tokens":16,"seed":5,"temperature":1.1`},
		{"+tools", hello + tools + `"max_tokens":16`},
		{"tools none", hello + tools + `"max_tokens":16,"tool_choice":"none"`},
		{"+!tools required", hello + tools + `"max_tokens":120,"tool_choice":"required"`},
		{"+tools named", hello + tools + `"max_tokens":120,"tool_choice":{"type":"function","function":{"name":"look"}}`},
		{"tool turns", `"messages":[{"role":"user","content":"look"},{"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"look","arguments":"{}"}}]},{"role":"tool","tool_call_id":"call_1","content":"seen"}],` + tools + `"max_tokens":12`},
		{"+json_object", hello + `"max_tokens":60,"response_format":{"type":"json_object"}`},
		{"+!json_schema", hello + `"max_tokens":60,"response_format":{"type":"json_schema","json_schema":{"name":"answer","schema":` + schema + `}}`},
		{"+regex", hello + `"max_tokens":24,"structured_outputs":{"regex":"[a-c]{3,6}"}`},
		{"+choice", hello + `"max_tokens":24,"structured_outputs":{"choice":["yes","no"]}`},
		{"+parts", `"messages":[{"role":"user","content":[{"type":"text","text":"one"},{"type":"text","text":"two"}]}],"max_tokens":12`},
		{"continued", `"messages":[{"role":"user","content":"go on"},{"role":"assistant","content":"The license"}],"add_generation_prompt":false,"continue_final_message":true,"max_tokens":8`},
		{"echo", hello + `"max_tokens":8,"echo":true`},
		{"min_tokens", hello + `"max_tokens":16,"min_tokens":10`},
		{"template arguments", hello + `"max_tokens":8,"chat_template_kwargs":{"x":1}`},
		{"return_token_ids", hello + `"max_tokens":6,"return_token_ids":true`},
		{"unknown members", hello + `"max_tokens":8,"store":true,"metadata":{"a":"b"},"parallel_tool_calls":false,"nobody_knows":1`},
		{"stream without usage", hello + `"max_tokens":8,"stream":true`},
		{"usage in every chunk", hello + `"max_tokens":8,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`},
	})
	out = append(out, posts("/v1/chat/completions", `"model":"adapted","temperature":0,`, [][2]string{
		{"+!adapter", hello + `"max_tokens":20`},
		{"+adapter long", `"messages":[{"role":"user","content":"` + long("Adapter:") + `"}],"max_tokens":20`},
	})...)
	return append(out, posts("/v1/completions", `"model":"adapted","temperature":0,`, [][2]string{
		{"+adapter", prompt + `"max_tokens":20`},
	})...)
}

// ids is a prompt of token IDs that is longer than a block.
const ids = `"token_ids":[300,301,302,303,304,305,306,307,308,309,310,311,312,313,314,315,316,317,318,319,320,321,322,323,324,325,326,327,328,329,330,331,332,333,334,335],`

// refused returns requests that vLLM rejects.
func refused() []request {
	const common = `"model":"tiny","temperature":0,`
	out := posts("/v1/completions", common, [][2]string{
		{"refused/max_tokens 2.5", prompt + `"max_tokens":2.5`},
		{"refused/max_tokens text", prompt + `"max_tokens":"many"`},
		{"!refused/max_tokens 0", prompt + `"max_tokens":0`},
		{"+refused/max_tokens -1", prompt + `"max_tokens":-1`},
		{"refused/max_tokens huge", prompt + `"max_tokens":100000`},
		{"refused/stream_options without stream", prompt + `"max_tokens":4,"stream_options":{"include_usage":true}`},
		{"refused/min_tokens", prompt + `"max_tokens":4,"min_tokens":9`},
		{"refused/NaN", prompt + `"temperature":NaN`},
		{"+refused/n greedy", prompt + `"max_tokens":10,"n":3`},
		{"refused/n 0", prompt + `"n":0`},
		{"refused/n text", prompt + `"n":"two"`},
		{"refused/stream text", prompt + `"stream":"perhaps"`},
		{"+refused/temperature", prompt + `"temperature":-1`},
		{"refused/top_p", prompt + `"top_p":2`},
		{"refused/logprobs", prompt + `"logprobs":1000`},
		{"refused/logprobs -2", prompt + `"logprobs":-2`},
		{"refused/no prompt", `"max_tokens":4`},
		{"refused/prompt null", `"prompt":null,"max_tokens":4`},
		{"refused/prompt number", `"prompt":7,"max_tokens":4`},
		{"refused/prompt empty", `"prompt":"","max_tokens":4`},
		{"refused/list empty", `"prompt":[],"max_tokens":4`},
		{"refused/mixed list", `"prompt":["a",1],"max_tokens":4`},
		{"+refused/too long", `"prompt":"` + strings.Repeat("license work ", 3000) + `","max_tokens":4`},
		{"refused/token of no word", `"prompt":[999999],"max_tokens":4`},
		{"refused/suffix", prompt + `"suffix":"x","max_tokens":4`},
		{"refused/priority", prompt + `"max_tokens":4,"priority":3`},
		{"refused/regex", prompt + `"structured_outputs":{"regex":"[a"}`},
		{"refused/schema", prompt + `"structured_outputs":{"json":{"type":"nothing"}}`},
		{"refused/two structures", prompt + `"structured_outputs":{"regex":"a","choice":["b"]}`},
		{"refused/echo and stream", prompt + `"echo":true,"stream":true,"max_tokens":0`},
		{"refused/seed", prompt + `"seed":99999999999999999999999999,"max_tokens":4`},
		{"refused/logit_bias", prompt + `"logit_bias":{"999999":1},"max_tokens":4`},
		{"refused/lone surrogate", `"prompt":"\ud800","max_tokens":4`},
	})
	out = append(out, posts("/v1/chat/completions", common, [][2]string{
		{"refused/no messages", `"max_tokens":4`},
		{"refused/messages empty", `"messages":[],"max_tokens":4`},
		{"refused/messages text", `"messages":"hello","max_tokens":4`},
		{"refused/role", `"messages":[{"role":"narrator","content":1}],"max_tokens":4`},
		{"refused/no role", `"messages":[{"content":"x"}],"max_tokens":4`},
		{"refused/top_logprobs alone", hello + `"top_logprobs":2,"max_tokens":4`},
		{"refused/tool_choice without tools", hello + `"tool_choice":"required","max_tokens":4`},
		{"refused/tool unknown", hello + tools + `"tool_choice":{"type":"function","function":{"name":"other"}},"max_tokens":4`},
		{"refused/tools text", hello + `"tools":"all","max_tokens":4`},
		{"refused/schema", hello + `"response_format":{"type":"json_schema"},"max_tokens":4`},
		{"refused/format", hello + `"response_format":{"type":"poem"},"max_tokens":4`},
		{"refused/image", `"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}],"max_tokens":4`},
	})...)
	out = append(out, posts("/v1/completions", "", [][2]string{
		{"!refused/model", `"model":"other","prompt":"x","max_tokens":4`},
		{"no model", `"prompt":"The license","max_tokens":4,"temperature":0`},
		{"refused/model number", `"model":7,"prompt":"x","max_tokens":4`},
		{"model empty", `"model":"","prompt":"x","max_tokens":4,"temperature":0`},
	})...)
	for _, c := range []struct{ name, contentType, body string }{
		{"no content type", "", `{"model":"tiny","prompt":"x","max_tokens":2,"temperature":0}`},
		{"content type of a form", "application/x-www-form-urlencoded", `{"model":"tiny","prompt":"x"}`},
		{"content type with charset", "application/json; charset=utf-8", `{"model":"tiny","prompt":"x","max_tokens":2,"temperature":0}`},
		{"text", "text/plain", `{"model":"tiny","prompt":"x"}`},
		{"bad JSON", "application/json", `{"model":"tiny","prompt":"x",,}`},
		{"cut JSON", "application/json", `{"model":"tiny","prompt":"x`},
		{"empty body", "application/json", ``},
		{"array", "application/json", `[1]`},
		{"string", "application/json", `"x"`},
		{"not UTF-8", "application/json", "{\"model\":\"tiny\",\"prompt\":\"\xff\"}"},
	} {
		out = append(out, request{name: "completions/refused/" + c.name, method: http.MethodPost, path: "/v1/completions", contentType: c.contentType, body: c.body})
	}
	return out
}

// others returns requests to other routes, which vLLM has or lacks.
func others() []request {
	out := []request{
		{name: "models", method: http.MethodGet, path: "/v1/models", short: true},
		{name: "model by id", method: http.MethodGet, path: "/v1/models/tiny"},
		{name: "no such route", method: http.MethodGet, path: "/v1/nothing"},
		{name: "no such method", method: http.MethodGet, path: "/v1/completions"},
		{name: "delete", method: http.MethodDelete, path: "/v1/chat/completions"},
		{name: "ping", method: http.MethodGet, path: "/ping"},
		{name: "load", method: http.MethodGet, path: "/load"},
		{name: "version", method: http.MethodGet, path: "/version"},
		{name: "health", method: http.MethodGet, path: "/health"},
		{name: "unknown response", method: http.MethodGet, path: "/v1/responses/resp_1"},
		{name: "unknown response, cancelled", method: http.MethodPost, path: "/v1/responses/resp_1/cancel"},
		{name: "tokenizer_info", method: http.MethodGet, path: "/tokenizer_info"},
	}
	out = append(out, posts("/inference/v1/generate", `"model":"tiny",`, [][2]string{
		{"+!tokens", ids + `"sampling_params":{"temperature":0,"max_tokens":12}`},
		{"text", ids + `"sampling_params":{"temperature":0,"max_tokens":12},"output_mode":"text"`},
		{"stop", ids + `"sampling_params":{"temperature":0,"max_tokens":12,"stop":["e"],"min_tokens":3,"ignore_eos":false}`},
		{"returned", ids + `"sampling_params":{"temperature":0,"max_tokens":4},"return_token_ids":true`},
		{"n", ids + `"sampling_params":{"temperature":0.5,"seed":1,"n":2,"max_tokens":4}`},
		{"refused/nothing", `"stream":false`},
		{"refused/no sampling", ids + `"sampling_params":null`},
		{"refused/max_tokens", ids + `"sampling_params":{"max_tokens":0}`},
		{"refused/max_tokens text", ids + `"sampling_params":{"max_tokens":"x"}`},
		{"refused/min_tokens", ids + `"sampling_params":{"max_tokens":3,"min_tokens":9}`},
		{"refused/stop", ids + `"sampling_params":{"stop":5}`},
		{"refused/token_ids text", `"token_ids":"x","sampling_params":{}`},
		{"refused/token_ids empty", `"token_ids":[],"sampling_params":{}`},
	})...)
	for _, c := range [][3]string{
		{"tokenize", "/tokenize", `{"model":"tiny","prompt":"The license"}`},
		{"detokenize", "/detokenize", `{"model":"tiny","tokens":[300,301,302]}`},
		{"score", "/score", `{"model":"tiny","text_1":"a","text_2":"b"}`},
		{"embeddings", "/v1/embeddings", `{"model":"tiny","input":"a"}`},
		{"render", "/v1/completions/render", `{"model":"tiny","prompt":"a"}`},
		{"messages", "/v1/messages", `{"model":"tiny","max_tokens":12,"temperature":0,"messages":[{"role":"user","content":"The license?"}]}`},
		{"messages/stream", "/v1/messages", `{"model":"tiny","max_tokens":12,"temperature":0,"stream":true,"messages":[{"role":"user","content":"The license?"}]}`},
		{"messages/refused", "/v1/messages", `{"model":"tiny","messages":[]}`},
		{"count_tokens", "/v1/messages/count_tokens", `{"model":"tiny","messages":[{"role":"user","content":"The license?"}]}`},
		{"responses", "/v1/responses", `{"model":"tiny","max_output_tokens":12,"temperature":0,"input":"The license?"}`},
		{"responses/previous unknown", "/v1/responses", `{"model":"tiny","max_output_tokens":12,"input":"The license?","previous_response_id":"resp_1"}`},
		{"responses/refused", "/v1/responses", `{"model":"tiny"}`},
	} {
		out = append(out, request{name: c[0], method: http.MethodPost, path: c[1], contentType: "application/json", body: c[2]})
	}
	return out
}
