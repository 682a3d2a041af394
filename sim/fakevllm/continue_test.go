package fakevllm_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
	"github.com/pdmesh/pdmesh/sim/testkit/pieces"
)

const (
	completions = "/v1/completions"
	chats       = "/v1/chat/completions"
)

// stream sends a request that streams token ids.
func stream(t *testing.T, s *fakevllm.Server, path string, body map[string]any) (prompt []int, list []pieces.Piece) {
	t.Helper()
	body = maps.Clone(body)
	body["stream"], body["return_token_ids"] = true, true
	text, err := json.Marshal(body)
	require.NoError(t, err)
	r := post(t, client(t), s.URL()+path, "", string(text))
	require.Equal(t, http.StatusOK, r.status, "%s: %s", text, r.body)
	for part := range strings.SplitSeq(strings.TrimSuffix(r.body, "\n\n"), "\n\n") {
		data, _ := strings.CutPrefix(part, "data: ")
		if data == "[DONE]" {
			return prompt, list
		}
		ids, p, err := pieces.Read(data)
		require.NoError(t, err)
		prompt = append(prompt, ids...)
		if p != nil {
			list = append(list, *p)
		}
	}
	t.Fatalf("the stream does not end: %s", r.body)
	return nil, nil
}

// rest continues after a history of ids.
func rest(t *testing.T, s *fakevllm.Server, path string, body map[string]any, prompt, history []int) []pieces.Piece {
	t.Helper()
	body = maps.Clone(body)
	body["max_tokens"] = body["max_tokens"].(int) - len(history)
	ids := slices.Concat(prompt, history)
	if path == completions {
		body["prompt"] = ids
	} else {
		body["kv_transfer_params"] = map[string]any{"prompt_token_ids": ids}
	}
	echoed, list := stream(t, s, path, body)
	require.Equal(t, ids, echoed, "prompt ids")
	return list
}

func messages(text string) []map[string]string {
	return []map[string]string{{"role": "user", "content": text}}
}

// TestContinue continues answers from prompt and history at each event. The ids are exact at each cut. The
// text is, too, unless the history ends in a part of a character: then the first text is the whole
// prompt and history, as in vLLM.
func TestContinue(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, path string
		o          fakevllm.Options
		body       map[string]any
	}{
		{"completions", completions, fakevllm.Options{}, map[string]any{"prompt": "one two", "max_tokens": 24}},
		{"split characters", completions, fakevllm.Options{}, map[string]any{"prompt": "three four", "max_tokens": 60}},
		{"several ids", completions, fakevllm.Options{}, map[string]any{"prompt": "five six", "max_tokens": 60, "stream_interval": 3}},
		{"chat", chats, fakevllm.Options{}, map[string]any{"messages": messages("seven"), "max_tokens": 60}},
		{"chat, whole context", chats, fakevllm.Options{MaxModelLen: 128}, map[string]any{"messages": messages("eight"), "max_tokens": 100, "ignore_eos": true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.o.SplitCharacters, tt.o.Version = tt.name != "completions", "0.32.0"
			s := fakevllm.StartTest(t, tt.o)
			prompt, all := stream(t, s, tt.path, tt.body)
			want, half := pieces.Join(all), 0
			for cut := 1; cut < len(all); cut++ {
				has := pieces.Join(all[:cut])
				got := pieces.Join(rest(t, s, tt.path, tt.body, prompt, has.IDs))
				require.Equal(t, "", cmp.Diff(want.IDs, append(slices.Clone(has.IDs), got.IDs...)), "after %d events", cut)
				text := model.Detokenize(has.IDs)
				if utf8.ValidString(text) {
					assert.True(t, has.Text+got.Text == want.Text && has.Finish+got.Finish == want.Finish,
						"after %d events: %q and %q %q are not %q %q", cut, has.Text, got.Text, got.Finish, want.Text, want.Finish)
					continue
				}
				half++
				if leak := model.Detokenize(prompt) + has.Text; got.Text != "" && !strings.HasPrefix(got.Text, leak) {
					t.Errorf("after half a character the text is %q, not %q first", got.Text, leak)
				}
			}
			assert.False(t, tt.o.SplitCharacters && half == 0, "no event ends in half a character")
		})
	}
}

// TestContinue_WrongHistory checks that a test can recognise a history that is not exact.
func TestContinue_WrongHistory(t *testing.T) {
	t.Parallel()
	s := fakevllm.StartTest(t, fakevllm.Options{Version: "0.32.0", ReasoningParser: "qwen3"})
	for path, body := range map[string]map[string]any{
		completions: {"prompt": "one two", "max_tokens": 24, "ignore_eos": true},
		chats:       {"messages": messages("one"), "max_tokens": 24, "ignore_eos": true},
	} {
		prompt, all := stream(t, s, path, body)
		want := pieces.Join(all)
		for _, history := range [][]int{want.IDs[:5], append(slices.Clone(want.IDs[:4]), 77), slices.Concat(want.IDs[:2], want.IDs[3:6])} {
			got := pieces.Join(rest(t, s, path, body, prompt, history))
			exact := slices.Equal(got.IDs, want.IDs[len(history):])
			assert.Equal(t, slices.Equal(history, want.IDs[:5]), exact,
				"%s: after %v follows %v, of %v", path, history, got.IDs, want.IDs)
		}
	}
}

// TestReasoningTokens checks that the usage of a chat has the number of reasoning tokens if the engine has a reasoning
// parser, in the way of that parser of vLLM.
func TestReasoningTokens(t *testing.T) {
	t.Parallel()
	number := regexp.MustCompile(`"completion_tokens_details":\{"reasoning_tokens":(\d+)\}\}`)
	for reasoning, zero := range map[string]bool{"qwen3": false, "deepseek_r1": true} {
		s := fakevllm.StartTest(t, fakevllm.Options{Version: "0.32.0", ReasoningParser: reasoning})
		prompt, all := stream(t, s, chats, map[string]any{"messages": messages("one"), "max_tokens": 200})
		tokens := 0
		if ids := pieces.Join(all).IDs; !zero {
			tokens = slices.Index(ids, model.EndThink) - 1 // without <think>
		}
		post := func(more string) []string {
			t.Helper()
			r := post(t, client(t), s.URL()+chats, "", `{"messages":[{"role":"user","content":"one"}],"max_tokens":200`+more+`}`)
			var counts []string
			for _, m := range number.FindAllStringSubmatch(r.body, -1) {
				counts = append(counts, m[1])
			}
			require.NotEmpty(t, counts, "%s: no count in %s", reasoning, r.body)
			return counts
		}
		want := strconv.Itoa(tokens)
		if got := post(""); !slices.Equal(got, []string{want}) {
			t.Errorf("%s: a whole answer has %q reasoning tokens, want %s", reasoning, got, want)
		}
		if got := post(`,"stream":true,"stream_options":{"include_usage":true}`); !slices.Equal(got, []string{want}) {
			t.Errorf("%s: a stream has %q reasoning tokens, want %s", reasoning, got, want)
		}
		got := post(`,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`)
		assert.True(t, got[0] == "0" && got[len(got)-1] == want && got[len(got)-2] == want,
			"%s: events have %q reasoning tokens, want %s in the end", reasoning, got, want)
		ids, err := json.Marshal(slices.Concat(prompt, pieces.Join(all).IDs[:tokens+2]))
		require.NoError(t, err)
		if got := post(`,"stream":true,"stream_options":{"include_usage":true},"kv_transfer_params":{"prompt_token_ids":` + string(ids) + `}`); !slices.Equal(got, []string{"0"}) {
			t.Errorf("%s: after </think>, %q reasoning tokens", reasoning, got)
		}
	}
}

// TestContinue_Restarts checks the requests whose answers a continuation does not continue, but which
// are the same when they are sent again.
func TestContinue_Restarts(t *testing.T) {
	t.Parallel()
	s := fakevllm.StartTest(t, fakevllm.Options{Version: "0.32.0"})
	for _, tt := range []struct {
		name   string
		params map[string]any
		exact  bool
		json   bool
	}{
		{"presence_penalty", map[string]any{"presence_penalty": 0.5}, false, false},
		{"frequency_penalty", map[string]any{"frequency_penalty": 0.5}, false, false},
		{"seed", map[string]any{"seed": 7}, false, false},
		{"seed, greedy", map[string]any{"seed": 7, "temperature": 0}, true, false},
		{"seed, top_k 1", map[string]any{"seed": 7, "top_k": 1}, true, false},
		{"repetition_penalty", map[string]any{"repetition_penalty": 1.3}, true, false},
		{"json_schema", map[string]any{"response_format": map[string]any{"type": "json_schema", "json_schema": map[string]any{"name": "a", "schema": map[string]any{}}}}, false, true},
		{"structured_outputs", map[string]any{"structured_outputs": map[string]any{"json": map[string]any{}}}, false, true},
	} {
		body := map[string]any{"prompt": "one two", "max_tokens": 80}
		maps.Copy(body, tt.params)
		prompt, all := stream(t, s, completions, body)
		_, again := stream(t, s, completions, body)
		want := pieces.Join(all)
		assert.Equal(t, "", cmp.Diff(want, pieces.Join(again)), tt.name)
		got := pieces.Join(rest(t, s, completions, body, prompt, want.IDs[:5]))
		assert.Equal(t, tt.exact, slices.Equal(got.IDs, want.IDs[5:]), "%s: exact", tt.name)
		if tt.json && (!json.Valid([]byte(want.Text)) || got.Text[0] != '{') {
			t.Errorf("%s: the answer is %q, the rest %q", tt.name, want.Text, got.Text)
		}
	}
}

// TestContinue_StopStrings checks that a stream holds back one character less than the longest stop
// string, and that a continuation from the ids of the text that was sent ends where the answer ended.
func TestContinue_StopStrings(t *testing.T) {
	t.Parallel()
	s := fakevllm.StartTest(t, fakevllm.Options{Version: "0.32.0", SplitCharacters: true})
	body := map[string]any{"prompt": "one two", "max_tokens": 40, "ignore_eos": true}
	_, all := stream(t, s, completions, body)
	text := []rune(pieces.Join(all).Text)
	body["stop"] = []string{string(text[60:71]), "never"}
	prompt, all := stream(t, s, completions, body)
	want := pieces.Join(all)
	require.True(t, want.Text == string(text[:60]) && want.Finish == "stop",
		"the answer is %q, not %q", want.Text, string(text[:60]))
	for cut := 5; cut < len(all); cut++ {
		has := pieces.Join(all[:cut])
		n := utf8.RuneCountInString(strings.ToValidUTF8(model.Detokenize(has.IDs), "")) - utf8.RuneCountInString(has.Text)
		assert.Equal(t, 10, n, "after %d events %d characters are held back, not 10", cut, n)
		history := has.IDs
		for !strings.HasPrefix(has.Text, model.Detokenize(history)) {
			history = history[:len(history)-1]
		}
		got := pieces.Join(rest(t, s, completions, body, prompt, history))
		assert.True(t, model.Detokenize(history)+got.Text == want.Text && got.Finish == "stop",
			"after %d events: %q and %q are not %q", cut, model.Detokenize(history), got.Text, want.Text)
	}
}

// offered are tools to a model that may call them.
var offered = []map[string]any{{"type": "function", "function": map[string]any{"name": "look"}}, {"type": "function", "function": map[string]any{"name": "go_on"}}}

// TestContinue_Parsers continues chats with reasoning and tool calls. Outside of a call the rest is exact, but
// calls have the indices from 0 on and, after the last call, the finish reason is stop. Inside a
// call its rest is content.
func TestContinue_Parsers(t *testing.T) {
	t.Parallel()
	for _, reasoning := range []string{"", "qwen3", "deepseek_r1"} {
		s := fakevllm.StartTest(t, fakevllm.Options{Version: "0.32.0", SplitCharacters: true, ReasoningParser: reasoning, ToolParser: "hermes", ParsedWords: 4})
		seen := map[int]bool{}
		for i := range 12 {
			body := map[string]any{"messages": messages(fmt.Sprint("question ", i)), "tools": offered, "max_tokens": 600}
			prompt, all := stream(t, s, chats, body)
			want := pieces.Join(all)
			seen[len(want.Calls)] = true
			if (want.Reasoning != "") != (reasoning != "") || want.Text == "" || strings.ContainsAny(want.Text+want.Reasoning, "<>") {
				t.Fatalf("the answer has reasoning %q and content %q", want.Reasoning, want.Text)
			}
			wanted := map[bool]string{true: "tool_calls", false: "stop"}[len(want.Calls) > 0]
			require.Equal(t, wanted, want.Finish, "finish reason %s of %d calls", want.Finish, len(want.Calls))
			for cut := 1; cut < len(all); cut += 3 {
				checkParsed(t, s, body, prompt, all, cut)
			}
		}
		assert.True(t, seen[0] && seen[1] && seen[2], "%s: numbers of calls: %v", reasoning, seen)
	}
}

func checkParsed(t *testing.T, s *fakevllm.Server, body map[string]any, prompt []int, all []pieces.Piece, cut int) {
	t.Helper()
	want, has := pieces.Join(all), pieces.Join(all[:cut])
	raw := model.Detokenize(has.IDs)
	if !utf8.ValidString(raw) {
		return
	}
	got := pieces.Join(rest(t, s, chats, body, prompt, has.IDs))
	require.Equal(t, want.IDs, append(slices.Clone(has.IDs), got.IDs...),
		"after %d events the ids are %v", cut, got.IDs)
	open := strings.Count(raw, "<tool_call>") > strings.Count(raw, "</tool_call>")
	switch {
	case open:
		assert.Contains(t, got.Text, "</tool_call>")
	case has.Reasoning+got.Reasoning != want.Reasoning || strings.TrimSpace(has.Text+got.Text) != strings.TrimSpace(want.Text):
		t.Errorf("after %q: reasoning %q, content %q", raw, got.Reasoning, got.Text)
	case !slices.Equal(append(slices.Clone(has.Calls), got.Calls...), want.Calls):
		t.Errorf("after %q: calls %q, not the rest of %q", raw, got.Calls, want.Calls)
	case len(got.Calls) > 0 && got.Finish != "tool_calls", len(got.Calls) == 0 && got.Finish != "stop":
		t.Errorf("after %q: finish reason %s", raw, got.Finish)
	}
}

// TestParsers_Whole compares answers in one piece with streams, and with Expected.
func TestParsers_Whole(t *testing.T) {
	t.Parallel()
	o := fakevllm.Options{Version: "0.32.0", SplitCharacters: true, ReasoningParser: "qwen3", ToolParser: "hermes", ParsedWords: 4}
	s := fakevllm.StartTest(t, o)
	for i := range 6 {
		body := map[string]any{"messages": messages(fmt.Sprint("question ", i)), "tools": offered, "max_tokens": 600, "return_token_ids": true}
		_, all := stream(t, s, chats, body)
		text, err := json.Marshal(body)
		require.NoError(t, err)
		r := post(t, client(t), s.URL()+chats, "", string(text))
		var answer struct {
			Choices []struct {
				Message struct {
					Content, Reasoning string
					ToolCalls          []struct {
						Function struct{ Name, Arguments string }
					} `json:"tool_calls"`
				}
				TokenIDs     []int  `json:"token_ids"`
				FinishReason string `json:"finish_reason"`
			}
		}
		require.NoError(t, json.Unmarshal([]byte(r.body), &answer), r.body)
		c := answer.Choices[0]
		got := pieces.Answer{Text: c.Message.Content, Reasoning: c.Message.Reasoning, IDs: c.TokenIDs, Finish: c.FinishReason}
		for _, call := range c.Message.ToolCalls {
			got.Calls = append(got.Calls, call.Function.Name+call.Function.Arguments)
		}
		assert.Empty(t, cmp.Diff(pieces.Join(all), got))
		list, err := o.Expected(chats, text)
		require.NoError(t, err)
		e := pieces.Answer{Text: list[0].Text, Reasoning: list[0].Reasoning, IDs: list[0].Tokens, Finish: list[0].FinishReason}
		for _, call := range list[0].Calls {
			e.Calls = append(e.Calls, call.Name+call.Arguments)
		}
		assert.Empty(t, cmp.Diff(e, got))
	}
}

// TestPromptIDs checks when kv_transfer_params.prompt_token_ids are the prompt of a chat, and which are refused.
func TestPromptIDs(t *testing.T) {
	t.Parallel()
	at31, at30 := fakevllm.StartTest(t, fakevllm.Options{Version: "0.31.0"}), fakevllm.StartTest(t, fakevllm.Options{Version: "0.30.0"})
	const user = `"messages":[{"role":"user","content":"hi"}],"max_tokens":4,"return_token_ids":true`
	for _, tt := range []struct {
		s            *fakevllm.Server
		body, prompt string // prompt "" is a refusal
		param        string
	}{
		{at31, `{` + user + `,"kv_transfer_params":{"prompt_token_ids":[20,21,22]}}`, `"prompt_token_ids":[20,21,22]`, ""},
		{at31, `{"messages":[],"return_token_ids":true,"max_tokens":4,"kv_transfer_params":{"prompt_token_ids":[20,21]}}`, `"prompt_token_ids":[20,21]`, ""},
		{at31, `{` + user + `,"echo":true,"kv_transfer_params":{"prompt_token_ids":[20,21,22]}}`, `"prompt_token_ids":[3,`, ""},
		{at31, `{` + user + `,"kv_transfer_params":{"prompt_token_ids":null}}`, `"prompt_token_ids":[3,`, ""},
		{at30, `{` + user + `,"kv_transfer_params":{"prompt_token_ids":[20,21,22]}}`, `"prompt_token_ids":[3,`, ""},
		{at31, `{` + user + `,"kv_transfer_params":{"prompt_token_ids":[]}}`, "", "kv_transfer_params.prompt_token_ids"},
		{at31, `{` + user + `,"kv_transfer_params":{"prompt_token_ids":[1.0]}}`, "", "kv_transfer_params.prompt_token_ids"},
		{at31, `{` + user + `,"kv_transfer_params":{"prompt_token_ids":[131072]}}`, "", "kv_transfer_params.prompt_token_ids"},
	} {
		r := post(t, client(t), tt.s.URL()+chats, "", tt.body)
		if tt.prompt != "" && (r.status != http.StatusOK || !strings.Contains(r.body, tt.prompt)) ||
			tt.prompt == "" && (r.status != http.StatusBadRequest || !strings.Contains(r.body, tt.param)) {
			t.Errorf("%s: %d %s", tt.body, r.status, r.body)
		}
	}
}

// TestWorkerDies checks that running requests end with an error when the engine's worker is killed, and when the
// engine shuts down while they run.
func TestWorkerDies(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*testing.T, *fakevllm.Server){
		"killed": func(_ *testing.T, s *fakevllm.Server) { s.KillWorker() },
		"shutdown": func(t *testing.T, s *fakevllm.Server) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if err := s.Shutdown(ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("shutdown: %v", err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := fakevllm.StartTest(t, fakevllm.Options{ITL: 20 * time.Millisecond})
			stream, whole := dialRaw(t, s), dialRaw(t, s)
			whole.send(t, completions, "w", `{"prompt":"x","max_tokens":100000,"ignore_eos":true}`)
			eventually(t, func() error { return want("running requests", s.Counters().Running, 1) })
			stream.send(t, completions, "s", `{"prompt":"x","max_tokens":100000,"ignore_eos":true,"stream":true}`)
			stream.until(t, `"text":`)
			end(t, s)
			const message = `EngineCore encountered an issue. See stack trace (above) for the root cause.`
			const event = `data: {"error": {"message": "` + message + `", "type": "InternalServerError", "param": null, "code": 500}}` + "\n\n"
			got, err := stream.rest()
			got = strings.ReplaceAll(got, "\r\n", "\n")
			if err != nil || !strings.Contains(got, event) || !strings.Contains(got, "data: [DONE]\n\n") || !strings.HasSuffix(got, "\n0\n\n") {
				t.Errorf("the stream ends with %q, %v", got, err)
			}
			if got, err = whole.rest(); err != nil || !strings.Contains(got, " 500 ") || !strings.Contains(got, message) {
				t.Errorf("the answer is %q, %v", got, err)
			}
		})
	}
}
