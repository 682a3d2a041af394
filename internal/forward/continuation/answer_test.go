package continuation_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/forward/continuation"
	"github.com/pdmesh/pdmesh/internal/forward/scratch"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/request"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

// vocabulary has the text of token 10, 11, and so on. Tokens 12 and 13 are halves of a character.
func vocabulary() []string {
	return []string{"The", " sea", "\xc3", "\xb6", " is", " deep", "\n", " and", " wide", "<", "tool", "!"}
}

// detokenize decodes token ids like an engine.
func detokenize(ids []byte) (string, error) {
	var list []int
	if err := json.Unmarshal(ids, &list); err != nil {
		return "", err
	}
	var b strings.Builder
	for _, id := range list {
		if i := id - 10; i >= 0 && i < len(vocabulary()) {
			b.WriteString(vocabulary()[i])
		} else {
			fmt.Fprintf(&b, "(%d)", id)
		}
	}
	return strings.ToValidUTF8(b.String(), "\uFFFD"), nil
}

func quote(s string) string {
	b, _ := json.Marshal(s)
	return string(b)
}

func list(ids []int) string {
	b, _ := json.Marshal(ids)
	return string(b)
}

// textEvent returns an event of /v1/completions in vLLM's format.
func textEvent(text string, prompt, ids []int) string {
	return `data: {"id":"cmpl-1","object":"text_completion","created":5,"model":"m","choices":[{"index":0,"text":` + quote(text) +
		`,"logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":` + list(prompt) + `,"token_ids":` + list(ids) + "}]}\n\n"
}

// chatEvent returns an event of /v1/chat/completions with these members in its delta.
func chatEvent(delta string, ids ...int) string {
	return `data: {"id":"chat-1","object":"chat.completion.chunk","created":5,"model":"m","choices":[{"index":0,"delta":{` + delta +
		`},"logprobs":null,"finish_reason":null,"token_ids":` + list(ids) + "}]}\n\n"
}

// finished returns an event with a finish reason.
func finished(event string) string {
	return strings.Replace(event, `"finish_reason":null`, `"finish_reason":"stop"`, 1)
}

func roleEvent(prompt ...int) string {
	return `data: {"id":"chat-1","object":"chat.completion.chunk","created":5,"model":"m","choices":[{"index":0,` +
		`"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":` + list(prompt) + `,"prompt_text":null}` + "\n\n"
}

func parse(t testing.TB, kind openai.Kind, body string) *request.Request {
	t.Helper()
	r, err := request.Parse(kind, []byte(body))
	require.NoError(t, err)
	return r
}

func begin(t *testing.T, kind openai.Kind, more string) *continuation.Answer {
	t.Helper()
	body := `{"model":"m","stream":true,"prompt":"x"` + more + `}`
	if kind == openai.Chat {
		body = `{"model":"m","stream":true,"messages":[{"role":"user","content":"x"}]` + more + `}`
	}
	return newAnswer(t, kind, body)
}

func newAnswer(t testing.TB, kind openai.Kind, body string) *continuation.Answer {
	t.Helper()
	return continuation.New(parse(t, kind, body), 3, scratch.NewBodies(0))
}

// pass passes events on and returns what the client gets.
func pass(t *testing.T, a *continuation.Answer, events ...string) string {
	t.Helper()
	out, err := a.Pass([]byte(strings.Join(events, "")))
	require.NoError(t, err)
	return string(out)
}

func next(t *testing.T, a *continuation.Answer) *continuation.Next {
	t.Helper()
	n, why := a.Next(detokenize)
	require.Equal(t, "", why, "refused")
	return n
}

func fields(t *testing.T, body []byte) map[string]any {
	t.Helper()
	var v map[string]any
	require.NoError(t, json.Unmarshal(body, &v), "%s", body)
	return v
}

func TestAnswer_HidesTokenIDs(t *testing.T) {
	t.Parallel()
	swapped := strings.NewReplacer("prompt_token_ids", "token_ids", "token_ids", "prompt_token_ids")
	for _, c := range []struct {
		name, more, in, want string
		kind                 openai.Kind
	}{
		{"completion", "", textEvent("The", []int{20, 21}, []int{10}), textEvent("The", nil, nil), openai.Completion},
		{"id of one digit", "", textEvent("The", []int{2}, []int{1}), textEvent("The", nil, nil), openai.Completion},
		{"ids before those of the prompt", "", swapped.Replace(textEvent("The", []int{20}, []int{10})), swapped.Replace(textEvent("The", nil, nil)), openai.Completion},
		{"several choices", `,"n":2`, textEvent("The", nil, []int{10}), textEvent("The", nil, []int{10}), openai.Completion},
		{"generate", `,"token_ids":[20],"sampling_params":{}`, textEvent("The", nil, []int{10}), textEvent("The", nil, []int{10}), openai.Generate},
		{"asked for", `,"return_token_ids":true`, textEvent("The", []int{20}, []int{10}), textEvent("The", []int{20}, []int{10}), openai.Completion},
		{"half a character", "", textEvent("", nil, []int{12}), textEvent("", nil, nil), openai.Completion},
		{"held back by a parser", "", chatEvent(`"content":"a"`, 10) + chatEvent("", 11), chatEvent(`"content":"a"`), openai.Chat},
	} {
		a := begin(t, c.kind, c.more)
		assert.Equal(t, c.want, pass(t, a, c.in), c.name)
	}
}

func TestAnswer_ContinuesCompletion(t *testing.T) {
	t.Parallel()
	a := begin(t, openai.Completion, `,"max_tokens":40,"min_tokens":5,"truncate_prompt_tokens":3,"temperature":0.7`)
	pass(t, a, textEvent("The", []int{20, 21}, []int{10}), textEvent(" sea", nil, []int{11}))
	n := next(t, a)
	f := fields(t, n.Request.Body)
	got := fmt.Sprint(f["prompt"], f["max_tokens"], f["min_tokens"], f["truncate_prompt_tokens"], f["temperature"])
	assert.Equal(t, "[20 21 10 11] 38 3 <nil> 0.7", got, "next request: %s", n.Request.Body)
	second := strings.NewReplacer("cmpl-1", "cmpl-2", `"created":5`, `"created":9`).Replace(
		textEvent(" is", []int{20, 21, 10, 11}, []int{14}) + `data: {"id":"cmpl-1","choices":[],"usage":{"prompt_tokens":4,"total_tokens":5,"completion_tokens":1}}` + "\n\n")
	want := textEvent(" is", nil, nil) + `data: {"id":"cmpl-1","choices":[],"usage":{"prompt_tokens":2,"total_tokens":5,"completion_tokens":3}}` + "\n\n"
	assert.Equal(t, want, pass(t, a, second), "second leg")
}

// A completion without max_tokens has at most 16 tokens.
func TestAnswer_DefaultLimit(t *testing.T) {
	t.Parallel()
	a := begin(t, openai.Completion, "")
	pass(t, a, textEvent("The", []int{20}, []int{10}))
	f := fields(t, next(t, a).Request.Body)
	assert.True(t, f["max_tokens"] == 15.0, "max_tokens %v", f["max_tokens"])
}

func TestAnswer_ContinuesChat(t *testing.T) {
	t.Parallel()
	a := begin(t, openai.Chat, `,"max_completion_tokens":9,"max_tokens":50`)
	pass(t, a, roleEvent(20, 21), chatEvent(`"reasoning":"The"`, 10), chatEvent(`"content":" is"`, 11, 14), chatEvent("", 19))
	n := next(t, a)
	f := fields(t, n.Request.Body)
	assert.True(t, f["max_tokens"] == 6.0 && f["max_completion_tokens"] == nil && f["messages"] != nil,
		"next request: %s", n.Request.Body)
	assert.Equal(t, "[20,21,10,11,14]", string(n.Request.PromptTokenIDs), "prompt")
	if got := string(n.Request.NewEdit().Body().Bytes()); !strings.Contains(got, `"kv_transfer_params":{"prompt_token_ids":[20,21,10,11,14]}`) {
		t.Errorf("leg %s", got)
	}
	got := pass(t, a, roleEvent(20, 21, 10, 11, 14), chatEvent(`"content":" deep"`, 15))
	assert.Equal(t, chatEvent(`"content":" deep"`), got, "second leg")
}

// logged returns textEvent with the logprobs of its tokens.
func logged(text string, prompt []int, ids ...int) string {
	var tokens []string
	for _, id := range ids {
		tokens = append(tokens, strings.ToValidUTF8(vocabulary()[id-10], "\uFFFD"))
	}
	b, _ := json.Marshal(tokens)
	return strings.Replace(textEvent(text, prompt, ids), `"logprobs":null`, `"logprobs":{"tokens":`+string(b)+`}`, 1)
}

// The next leg must continue after ids whose text the client has and which end with a whole character.
func TestAnswer_Seam(t *testing.T) {
	t.Parallel()
	first := textEvent("The", []int{20}, []int{10})
	for _, c := range []struct {
		name, more string
		events     []string
		ids, rest  string // of the next leg; ids "" if it is refused
	}{
		{"half a character", "", []string{first, textEvent("", nil, []int{12})}, "[20 10]", ""},
		{"half a character behind text", "", []string{textEvent("The sea", []int{20}, []int{10, 11, 12})}, "[20 10 11]", ""},
		{"whole character", "", []string{first, textEvent("", nil, []int{12}), textEvent("ö", nil, []int{13})}, "[20 10 12 13]", ""},
		{"held back for a stop string", `,"stop":["xyz!"]`, []string{textEvent("", []int{20}, []int{10}), textEvent("The s", nil, []int{11})}, "[20 10 11]", "ea"},
		{"end of the text may begin a stop string", `,"stop":"\n\n"`, []string{first, textEvent("", nil, []int{16})}, "[20 10]", ""},
		{"15 ids without text", "", []string{first, textEvent("", nil, slices.Repeat([]int{12}, 15))}, "[20 10]", ""},
		{"16 ids without text", "", []string{first, textEvent("", nil, slices.Repeat([]int{12}, 16))}, "", ""},
		{"another text", "", []string{textEvent("Xhe", []int{20}, []int{10})}, "", ""},
		{"text before its ids", "", []string{textEvent("The sea is", []int{20}, []int{10})}, "", ""},
		{"a special token", `,"ignore_eos":true`, []string{first, textEvent("", nil, []int{99}), textEvent(" sea", nil, []int{11})}, "[20 10 99 11]", ""},
		{"special tokens and half a character", "", []string{
			first, textEvent("", nil, []int{12}), textEvent("ö", nil, []int{13}), textEvent("", nil, []int{99}),
			textEvent("", nil, []int{99}), textEvent(" sea", nil, []int{11}), textEvent("", nil, []int{12}),
		}, "[20 10 12 13 99 99 11]", ""},
		{"a special token beside stop strings", `,"stop":"xyz"`, []string{first, textEvent("", nil, []int{99}), textEvent(" sea", nil, []int{11})}, "", ""},
		{"a special token at the end", "", []string{first, textEvent("", nil, []int{99})}, "[20 10 99]", ""},
		{"client has the logprobs", `,"logprobs":1`, []string{first, logged("", nil, 12)}, "", ""},
		{"client has the logprobs of the first token", `,"logprobs":1`, []string{logged("", []int{20}, 12)}, "", ""},
		{"client has the logprobs of whole characters", `,"logprobs":1`, []string{logged("The", []int{20}, 10)}, "[20 10]", ""},
		{"client has the ids", `,"return_token_ids":true`, []string{first, textEvent("", nil, []int{12})}, "", ""},
	} {
		a := begin(t, openai.Completion, `,"max_tokens":99`+c.more)
		pass(t, a, c.events...)
		n, why := a.Next(detokenize)
		if why != "" {
			assert.True(t, c.ids == "" && why == continuation.ReasonSeam, "%s: refused: %s", c.name, why)
			continue
		}
		prompt := fields(t, n.Request.Body)["prompt"]
		if fmt.Sprint(prompt) != c.ids {
			t.Errorf("%s: goes on from %v, want %q", c.name, prompt, c.ids)
			continue
		}
		var ids []int
		for _, id := range prompt.([]any) {
			ids = append(ids, int(id.(float64)))
		}
		got := pass(t, a, textEvent(" wide", ids, []int{18}))
		assert.Contains(t, got, `"text":"`+c.rest+` wide"`, "%s: %s", c.name, got)
	}
}

// Text that a parser of the engine holds back must not get to the client as content.
func TestAnswer_SeamOfParsers(t *testing.T) {
	t.Parallel()
	a := begin(t, openai.Chat, `,"tools":[{"type":"function"}]`)
	pass(t, a, roleEvent(20), chatEvent(`"content":"The"`, 10, 19), chatEvent("", 20))
	assert.Equal(t, "[20,10]", string(next(t, a).Request.PromptTokenIDs), "goes on from")
}

// A parser may hold back white space at the end of reasoning until more reasoning follows, and otherwise drop
// it. Token 21 ends with such space.
func TestAnswer_SeamInSpaceOfReasoning(t *testing.T) {
	t.Parallel()
	spaced := func(ids []byte) (string, error) {
		text, err := detokenize(ids)
		return strings.ReplaceAll(text, "!", ".\n\n"), err
	}
	for _, c := range []struct{ goesOn, want string }{
		{`"reasoning":" sea"`, `"delta":{"reasoning":"\n\n sea"}`},
		{`"content":" sea"`, `"delta":{"content":" sea"}`},
	} {
		a := begin(t, openai.Chat, "")
		pass(t, a, roleEvent(20), chatEvent(`"reasoning":"The"`, 10), chatEvent(`"reasoning":"."`, 21))
		n, why := a.Next(spaced)
		require.True(t, n != nil && n.How == continuation.HowChat && string(n.Request.PromptTokenIDs) == "[20,10,21]",
			"goes on by %+v, %q", n, why)
		got := pass(t, a, roleEvent(20, 10, 21), chatEvent(c.goesOn, 11))
		assert.Contains(t, got, c.want, "%s: %s", c.goesOn, got)
	}
}

// The engine's Harmony parser begins each answer with a message header, so no leg can continue inside a
// message.
func TestAnswer_ReplaysHarmony(t *testing.T) {
	t.Parallel()
	harmony := func(ids []byte) (string, error) {
		text, err := detokenize(ids)
		return "<|channel|>analysis<|message|>" + text, err
	}
	for more, how := range map[string]string{"": "", `,"temperature":0`: continuation.HowReplay} {
		a := begin(t, openai.Chat, more)
		pass(t, a, roleEvent(20), chatEvent(`"reasoning":"The"`, 10), chatEvent(`"reasoning":" sea"`, 11))
		assert.False(t, a.MayMove(harmony), "%q: may move", more)
		switch n, why := a.Next(harmony); {
		case how == "" && why != continuation.ReasonSeam:
			t.Errorf("goes on, or %q", why)
		case how != "" && (n == nil || n.How != how):
			t.Errorf("%s: %+v, %q", more, n, why)
		}
	}
	a := begin(t, openai.Chat, "")
	pass(t, a, roleEvent(20), chatEvent("", 10))
	if n, why := a.Next(harmony); n == nil || n.How != continuation.HowChat {
		t.Errorf("without any text: %q", why)
	}
}

// A leg that does not continue the answer must not reach the client.
func TestAnswer_RefusesAnotherAnswer(t *testing.T) {
	t.Parallel()
	long := textEvent("The", []int{10, 11, 14, 15, 17, 18, 10, 11}, []int{10}) + textEvent(" sea is deep and wide", nil, []int{11, 14, 15, 17, 18})
	for name, event := range map[string]string{
		"other prompt": textEvent(" is", []int{10, 11}, []int{14}),
		"no prompt":    textEvent(" is", nil, []int{14}),
		"prompt text":  textEvent("The sea is deep and wideThe seaThe sea is deep and wide is", []int{10, 11, 14, 15, 17, 18, 10, 11, 10, 11, 14, 15, 17, 18}, []int{14}),
		"history text": textEvent("he sea The sea is deep and wide is", []int{10, 11, 14, 15, 17, 18, 10, 11, 10, 11, 14, 15, 17, 18}, []int{14}),
	} {
		a := begin(t, openai.Completion, `,"max_tokens":99`)
		pass(t, a, long)
		next(t, a)
		if out, err := a.Pass([]byte(event)); err == nil {
			t.Errorf("%s: the client gets %s", name, out)
		}
	}
}

func TestAnswer_CompletesItself(t *testing.T) {
	t.Parallel()
	done := "data: [DONE]\n\n"
	for _, c := range []struct {
		name, more string
		kind       openai.Kind
		events     []string
		want       []string
	}{
		{"limit reached", `,"max_tokens":2,"stream_options":{"include_usage":true}`, openai.Completion,
			[]string{textEvent("The", []int{20}, []int{10}), textEvent(" sea", nil, []int{11})},
			[]string{`"finish_reason":"length"`, `"prompt_tokens":1,"total_tokens":3,"completion_tokens":2`}},
		{"limit reached, usage in every event", `,"max_tokens":1,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`, openai.Chat,
			[]string{roleEvent(20), chatEvent(`"content":"The"`, 10)},
			[]string{`"stop_reason":null}],"usage":{"prompt_tokens":1,"total_tokens":2,"completion_tokens":1}}`}},
		{"limit reached, text held back", `,"max_tokens":2,"stop":["xyz!"]`, openai.Completion,
			[]string{textEvent("", []int{20}, []int{10}), textEvent("The s", nil, []int{11})}, []string{`"text":"ea"`}},
		{"only the usage is missing", `,"stream_options":{"include_usage":true}`, openai.Chat,
			[]string{roleEvent(20), finished(chatEvent(`"content":"The"`, 10))},
			[]string{`"completion_tokens":1`}},
	} {
		a := begin(t, c.kind, c.more)
		pass(t, a, c.events...)
		assert.Equal(t, strings.HasPrefix(c.name, "limit"), a.MayMove(detokenize), "%s: may move", c.name)
		n := next(t, a)
		got := string(n.Events)
		for _, want := range append(c.want, done) {
			assert.Contains(t, got, want, "%s: no %s in %s", c.name, want, got)
		}
		if n.How != continuation.HowProxy || strings.Contains(got, "finish_reason") != strings.HasPrefix(c.name, "limit") {
			t.Errorf("%s: %s %s", c.name, n.How, got)
		}
	}
}

// Calls that begin after the seam continue the indexes of those before it.
func TestAnswer_ToolCallsAfterTheSeam(t *testing.T) {
	t.Parallel()
	call := func(index int) string {
		return fmt.Sprintf(`"tool_calls":[{"index":%d,"function":{"name":"f","arguments":""}}]`, index)
	}
	a := begin(t, openai.Chat, `,"tools":[{"type":"function"}]`)
	pass(t, a, roleEvent(20), chatEvent(`"content":"The"`, 10), chatEvent(call(0), 11))
	if _, why := a.Next(detokenize); why != continuation.ReasonToolCall {
		t.Fatalf("an open call: %q", why)
	}
	pass(t, a, chatEvent(`"content":" is"`, 14))
	next(t, a)
	finish := finished(chatEvent("", 15))
	got := pass(t, a, roleEvent(20, 10, 11, 14), chatEvent(call(0), 15), finish)
	testkit.Contains(t, got, `"index":1,"function"`, `"finish_reason":"tool_calls"`)
}

// A continued leg's count of reasoning tokens is not reported, since the parser of the answer counts them
// differently. A leg that begins the answer counts all of them.
func TestAnswer_ReasoningTokens(t *testing.T) {
	t.Parallel()
	const usage = `"usage":{"prompt_tokens":4,"total_tokens":6,"completion_tokens":2,"completion_tokens_details":{"reasoning_tokens":1}}`
	last := `data: {"id":"chat-1","object":"chat.completion.chunk","created":5,"model":"m","choices":[],` + usage + "}\n\n"
	for _, c := range []struct {
		first []string // events of the lost leg
		ids   []int    // prompt of the next one
		want  string
	}{
		{[]string{roleEvent(20, 21), chatEvent(`"reasoning":"The"`, 10), chatEvent(`"reasoning":" sea"`, 11)}, []int{20, 21, 10, 11},
			`"usage":{"prompt_tokens":2,"total_tokens":6,"completion_tokens":4,"completion_tokens_details":null}`},
		{[]string{roleEvent(20, 21, 22, 23), chatEvent("", 6)}, []int{20, 21, 22, 23}, usage},
	} {
		a := begin(t, openai.Chat, `,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`)
		pass(t, a, c.first...)
		next(t, a)
		got := pass(t, a, roleEvent(c.ids...), strings.Replace(chatEvent(`"reasoning":" is"`, 14), "}]}", "}],"+usage+"}", 1), last)
		assert.Equal(t, 2, strings.Count(got, c.want), "%s, want %s", got, c.want)
	}
}

// offsets returns an event of /v1/completions with the logprobs of these tokens.
func offsets(text string, prompt, ids, at []int, tokens ...string) string {
	b, _ := json.Marshal(map[string]any{"text_offset": at, "tokens": tokens})
	return strings.Replace(textEvent(text, prompt, ids), `"logprobs":null`, `"logprobs":`+string(b), 1)
}

// vLLM adds up the lengths of the reported tokens. With return_tokens_as_token_ids, these are not the text.
func TestAnswer_ShiftsTextOffsets(t *testing.T) {
	t.Parallel()
	for _, tokens := range [][]string{{"The", " sea", "ö", " is"}, {"token_id:10", "token_id:11", "token_id:12", "token_id:14"}} {
		a := begin(t, openai.Completion, `,"max_tokens":99,"logprobs":1`)
		var at []int
		for n := 0; len(at) < len(tokens); n += utf8.RuneCountInString(tokens[len(at)-1]) {
			at = append(at, n)
		}
		pass(t, a, offsets("The", []int{20}, []int{10}, at[:1], tokens[0]), offsets(" sea", nil, []int{11}, at[1:2], tokens[1]))
		next(t, a)
		got := pass(t, a, offsets("ö is", []int{20, 10, 11}, []int{12, 13, 14}, []int{0, at[3] - at[2]}, tokens[2:]...))
		want := fmt.Sprintf(`"text_offset":[%d,%d]`, at[2], at[3])
		assert.Contains(t, got, want, "second leg: %s, want %s", got, want)
		next(t, a)
		got = pass(t, a, offsets(" deep", []int{20, 10, 11, 12, 13, 14}, []int{15}, []int{0}, " deep"))
		want = fmt.Sprintf(`"text_offset":[%d]`, at[3]+utf8.RuneCountInString(tokens[3]))
		assert.Contains(t, got, want, "third leg: %s, want %s", got, want)
	}
}

// Some tokenizers drop the space at the start of a text. The client has received it, so it counts.
func TestAnswer_ShiftsTextOffsetsByTheFirstSpace(t *testing.T) {
	t.Parallel()
	a := begin(t, openai.Completion, `,"max_tokens":99,"logprobs":1`)
	pass(t, a, offsets(" sea", []int{20}, []int{11}, []int{0}, " sea"))
	if _, why := a.Next(func(ids []byte) (string, error) {
		text, err := detokenize(ids)
		return strings.TrimPrefix(text, " "), err
	}); why != "" {
		t.Fatalf("refused: %s", why)
	}
	assert.Contains(t, pass(t, a, offsets(" is", []int{20, 11}, []int{14}, []int{0}, " is")), `"text_offset":[4]`)
}

// Every refusal has one of the listed reasons.
func TestAnswer_Refuses(t *testing.T) {
	t.Parallel()
	for more, want := range map[string]string{
		`,"n":2`:                                       continuation.ReasonChoices,
		`,"echo":true`:                                 continuation.ReasonChoices,
		`,"prompt_logprobs":1`:                         continuation.ReasonChoices,
		`,"seed":1`:                                    continuation.ReasonSeed,
		`,"seed":1,"temperature":0.5`:                  continuation.ReasonSeed,
		`,"seed":1,"temperature":0`:                    "",
		`,"seed":1,"top_k":1`:                          "",
		`,"presence_penalty":0.1`:                      continuation.ReasonPenalty,
		`,"presence_penalty":0`:                        "",
		`,"repetition_penalty":1.3`:                    "",
		`,"bad_words":["x"]`:                           continuation.ReasonPenalty,
		`,"repetition_detection":{"min_count":3}`:      continuation.ReasonPenalty,
		`,"repetition_detection":null`:                 "",
		`,"response_format":{"type":"json_object"}`:    continuation.ReasonStructure,
		`,"response_format":{"type":"text"}`:           "",
		`,"response_format":null`:                      "",
		`,"structured_outputs":null`:                   "",
		`,"logits_processors":[]`:                      "",
		`,"structured_outputs":{"regex":"a"}`:          continuation.ReasonStructure,
		`,"thinking_token_budget":4`:                   continuation.ReasonThinking,
		`,"logits_processors":["x"]`:                   continuation.ReasonCustom,
		`,"tool_choice":"required"`:                    continuation.ReasonStructure,
		`,"stop":["x"],"logit_bias":{"1":2},"top_p":1`: "",
		`,"stop":"` + strings.Repeat("x", 256) + `"`:   "",
		`,"stop":"` + strings.Repeat("x", 257) + `"`:   continuation.ReasonSeam,
	} {
		kind := openai.Completion
		if strings.Contains(more, "tool_choice") {
			kind = openai.Chat
		}
		a := begin(t, kind, `,"max_tokens":9`+more)
		if kind == openai.Chat {
			pass(t, a, roleEvent(20), chatEvent(`"content":"The"`, 10))
		} else {
			pass(t, a, textEvent("The", []int{20}, []int{10}))
		}
		if _, why := a.Next(detokenize); why != want {
			t.Errorf("%s: %q, want %q", more, why, want)
		} else if why != "" && !slices.Contains(continuation.Reasons(), why) {
			t.Errorf("%s is not listed", why)
		}
	}
}

func TestAnswer_RefusesMore(t *testing.T) {
	t.Parallel()
	first := textEvent("The", []int{20}, []int{10})
	if a := continuation.New(parse(t, openai.Completion, `{"prompt":"x"}`), 3, nil); a != nil {
		t.Error("an answer that is no stream is continued")
	}
	if a := begin(t, openai.Completion, ""); a.Records() != true {
		t.Error("no token ids are recorded")
	}
	responses := continuation.New(parse(t, openai.Responses, `{"input":"x","stream":true}`), 3, nil)
	assert.True(t, !responses.Records() && responses.Refused() == continuation.ReasonAPI,
		"responses: %s", responses.Refused())
	for thinking, want := range map[string]string{
		`{"type":"enabled","budget_tokens":9}`: continuation.ReasonThinking, `{"type":"disabled"}`: "", `null`: "",
	} {
		m := newAnswer(t, openai.Messages, `{"model":"m","messages":[],"max_tokens":20,"stream":true,"temperature":0,"thinking":`+thinking+`}`)
		assert.Equal(t, want, m.Refused(), "thinking %s", thinking)
	}
	a := begin(t, openai.Completion, "")
	pass(t, a, strings.Replace(first, "[10]", "null", 1))
	assert.Equal(t, continuation.ReasonNoIDs, a.Refused(), "an engine without token ids")
	pass(t, a, textEvent(" sea", []int{20}, []int{11}))
	assert.Equal(t, continuation.ReasonNoIDs, a.Refused(), "token ids of a part of the answer")
	assert.True(t, a.Records() && !a.WantsIDs(),
		"after an engine without token ids: records %v, wants ids %v", a.Records(), a.WantsIDs())
	a = begin(t, openai.Completion, `,"temperature":0`)
	pass(t, a, first)
	if _, why := a.Next(func([]byte) (string, error) { return "", errors.New("x") }); why != continuation.ReasonText {
		t.Errorf("no engine detokenizes: %q", why)
	}
	for i := range 4 {
		_, why := a.Next(detokenize)
		assert.Equal(t, i == 3, why == continuation.ReasonLimit, "move %d: %q", i, why)
	}
	bodies := scratch.NewBodies(8 << 10)
	require.NoError(t, bodies.Reserve(8<<10))
	a = continuation.New(parse(t, openai.Completion, `{"prompt":"x","stream":true}`), 3, bodies)
	many := make([]int, 4096)
	pass(t, a, textEvent("The", many, []int{10}))
	assert.Equal(t, continuation.ReasonMemory, a.Refused(), "no memory")
}

// A replay omits the text that the client has, even if that ends inside an event, and stops if the engine
// writes a different answer.
func TestAnswer_Replays(t *testing.T) {
	t.Parallel()
	args := func(index int, s string) string {
		return fmt.Sprintf(`"tool_calls":[{"index":%d,"function":{"arguments":%s}}]`, index, quote(s))
	}
	open := `"tool_calls":[{"id":"c1","type":"function","index":0,"function":{"name":"f","arguments":""}}]`
	lost := []string{roleEvent(20), chatEvent(`"reasoning":"hm"`, 10), chatEvent(`"content":"The"`, 10), chatEvent(open, 11), chatEvent(args(0, `{"a`), 12)}
	for _, c := range []struct {
		name, replay string
		want         []string
	}{
		{"packed otherwise", roleEvent(20) + chatEvent(`"reasoning":"h"`, 10) + chatEvent(`"reasoning":"m"`, 10) + chatEvent(`"content":"Th"`, 10) + chatEvent(`"content":"e"`, 10) +
			chatEvent(strings.ReplaceAll(open, "c1", "c2"), 11) + chatEvent(args(0, `{"a":1}`), 12) + chatEvent(strings.ReplaceAll(open, `"index":0`, `"index":1`), 13),
			[]string{`"index":0,"function":{"arguments":"\":1}"}`, `"index":1,"function":{"name":"f"`}},
		{"another text", roleEvent(20) + chatEvent(`"reasoning":"ho"`, 10), nil},
		{"ends earlier", roleEvent(20) + chatEvent(`"reasoning":"hm"`, 10) + finished(chatEvent("", 10)), nil},
	} {
		a := begin(t, openai.Chat, `,"temperature":0,"tools":[{"type":"function"}]`)
		pass(t, a, lost...)
		n := next(t, a)
		require.True(t, n.How == continuation.HowReplay && n.Request.PromptTokenIDs == nil,
			"%s: goes on by %s", c.name, n.How)
		out, err := a.Pass([]byte(c.replay))
		require.Equal(t, c.want != nil, err == nil, "%s: %v, %s", c.name, err, out)
		for _, want := range c.want {
			assert.Contains(t, string(out), want, "%s: no %s in %s", c.name, want, out)
		}
		if s := string(out); strings.Contains(s, "hm") || strings.Contains(s, "c2") || strings.Contains(s, "role") || strings.Contains(s, `{\"a\"`) {
			t.Errorf("%s: %s", c.name, s)
		}
	}
}

// vLLM 0.12 and some later releases write reasoning under its old name, too.
func TestAnswer_ReplaysReasoningOfTwoNames(t *testing.T) {
	t.Parallel()
	both := func(s string) string { return chatEvent(`"reasoning":`+quote(s)+`,"reasoning_content":`+quote(s), 10) }
	a := begin(t, openai.Chat, `,"temperature":0,"presence_penalty":1`)
	pass(t, a, roleEvent(20), both("hm"))
	require.Equal(t, continuation.HowReplay, next(t, a).How, "goes on by")
	want := strings.Replace(both(", so"), "[10]", "null", 1)
	assert.Equal(t, want, pass(t, a, roleEvent(20), both("hm, so")))
}

// A replay omits the logprobs that the client has.
func TestAnswer_ReplaysLogprobs(t *testing.T) {
	t.Parallel()
	for _, replay := range []string{
		logged("The", []int{20}, 10) + logged("", nil, 12) + logged("ö", nil, 13),
		logged("The", []int{20}, 10, 12) + logged("ö", nil, 13),
		logged("The", []int{20}, 10) + logged("ö", nil, 12, 13),
		logged("Theö", []int{20}, 10, 12, 13),
	} {
		a := begin(t, openai.Completion, `,"temperature":0,"logprobs":1`)
		pass(t, a, logged("The", []int{20}, 10), logged("", nil, 12))
		require.Equal(t, continuation.HowReplay, next(t, a).How, "goes on by")
		got := pass(t, a, replay)
		if strings.Count(got, "data: ") != 1 || !strings.Contains(got, `"text":"ö"`) || !strings.Contains(got, "\"tokens\":[\"\uFFFD\"]") {
			t.Errorf("of %s\n got %s", replay, got)
		}
	}
}

// The same holds for deltas of /v1/responses. The event that ends the text repeats all of them.
func TestAnswer_ReplaysLogprobsOfResponses(t *testing.T) {
	t.Parallel()
	delta := func(text string, tokens ...string) string {
		list := make([]string, len(tokens))
		for i, token := range tokens {
			list[i] = `{"token":"` + token + `","logprob":-1}`
		}
		return "event: response.output_text.delta\ndata: " + `{"content_index":0,"delta":"` + text + `","logprobs":[` + strings.Join(list, ",") +
			`],"sequence_number":1,"type":"response.output_text.delta"}` + "\n\n"
	}
	done := strings.NewReplacer("output_text.delta", "output_text.done", `"delta":`, `"text":`).Replace(delta("The sea", "The", " s", "ea"))
	for _, c := range []struct{ replay, want string }{
		{delta("The", "The") + delta(" sea", " s", "ea") + done, delta("ea", "ea") + done},
		{delta("The s", "The", " s") + delta("ea", "ea") + done, delta("ea", "ea") + done},
		{delta("The sea", "The", " s", "ea") + done, delta("ea", "ea") + done},
		{delta("The", "The") + delta(" sea", "", " s", "", "ea") + done, delta("ea", "ea") + done},
		{delta("The s", "The", "", " s") + delta("ea", "", "ea"), delta("ea", "", "ea")},
	} {
		a := continuation.New(parse(t, openai.Responses, `{"input":"x","stream":true,"temperature":0}`), 3, nil)
		pass(t, a, delta("The", "The"), delta(" s", " s"))
		require.Equal(t, continuation.HowReplay, next(t, a).How, "goes on by")
		got := regexp.MustCompile(`"sequence_number":\d+`).ReplaceAllString(pass(t, a, c.replay), `"sequence_number":1`)
		assert.Equal(t, c.want, got, "of %s", c.replay)
	}
}

// The inner levels of an event are neither compared nor read: engines repeat the tools of the client, whose
// nesting would multiply the time for their size.
func TestAnswer_ReplaysDeepEvents(t *testing.T) {
	t.Parallel()
	created := func(depth int, kind string) string {
		tools := strings.Repeat(`{"properties":`, depth) + `{"type":"` + kind + `"}` + strings.Repeat("}", depth)
		return `data: {"type":"response.created","response":{"tools":[` + tools + `]},"sequence_number":0}` + "\n\n"
	}
	for depth, same := range map[int]bool{1: false, 4: false, 8: true, 400: true} {
		a := continuation.New(parse(t, openai.Responses, `{"input":"x","stream":true,"temperature":0}`), 3, nil)
		pass(t, a, created(depth, "string"))
		next(t, a)
		_, err := a.Pass([]byte(created(depth, "number")))
		assert.Equal(t, same, err == nil, "types at depth %d: %v", depth, err)
	}
}

// A replay for the usage omits the finish reason that the client has. If only [DONE] is missing, there is no
// replay.
func TestAnswer_ReplaysForUsage(t *testing.T) {
	t.Parallel()
	text := chatEvent(`"content":"The"`)
	finish := finished(chatEvent(`"content":""`))
	usage := `data: {"id":"chat-1","choices":[],"usage":{"prompt_tokens":4,"total_tokens":5,"completion_tokens":1}}` + "\n\n"
	lost := func(events ...string) *continuation.Answer {
		a := begin(t, openai.Chat, `,"temperature":0,"stream_options":{"include_usage":true}`)
		pass(t, a, append([]string{roleEvent(20), text, finish}, events...)...)
		return a
	}
	for _, replay := range []string{text + finish, strings.Replace(finish, `"content":""`, `"content":"The"`, 1)} {
		a := lost()
		require.Equal(t, continuation.HowReplay, next(t, a).How, "goes on by")
		assert.Equal(t, usage, pass(t, a, roleEvent(20), replay, usage), "%s", replay)
	}
	a := lost()
	assert.False(t, a.MayMove(nil), "a finished answer moves")
	next(t, a)
	if out, err := a.Pass([]byte(roleEvent(20) + text + text)); err == nil {
		t.Errorf("a longer answer: %s", out)
	}
	if n := next(t, lost(usage)); string(n.Events) != "data: [DONE]\n\n" {
		t.Errorf("goes on by %s: %s", n.How, n.Events)
	}
}

// An answer is replayed only within ten seconds of its first text, since a replay may take as long again.
func TestAnswer_ReplaysForTenSeconds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for wait, how := range map[time.Duration]string{9 * time.Second: continuation.HowReplay, 11 * time.Second: ""} {
			a := begin(t, openai.Chat, `,"temperature":0,"response_format":{"type":"json_object"}`)
			time.Sleep(time.Minute) // before the first text there is nothing to replay
			pass(t, a, roleEvent(20), chatEvent(`"content":"{"`, 10))
			time.Sleep(wait)
			assert.Equal(t, how != "", a.MayMove(nil), "may move after %v", wait)
			n, why := a.Next(nil)
			if how == "" && why != continuation.ReasonStructure || how != "" && (why != "" || n.How != how) {
				t.Errorf("after %v: %+v, %q", wait, n, why)
			}
		}
	})
}

// The memory of token ids is counted, and released when the request ends.
func TestAnswer_CountsMemory(t *testing.T) {
	t.Parallel()
	bodies := scratch.NewBodies(1 << 20)
	a := continuation.New(parse(t, openai.Completion, `{"prompt":"x","stream":true}`), 3, bodies)
	many := make([]int, 20000)
	for i := range many {
		many[i] = i * 7
	}
	pass(t, a, textEvent("The", many, []int{10}))
	if held, _, _ := bodies.Memory(); held < 80_000 || held > 100_000 {
		t.Errorf("%d bytes for 20,000 tokens", held)
	}
	f := fields(t, next(t, a).Request.Body)
	got := f["prompt"].([]any)
	assert.True(t, len(got) == 20001 && got[19999] == float64(19999*7), "%d tokens", len(got))
	a.Release()
	if held, _, _ := bodies.Memory(); held != 0 {
		t.Errorf("%d bytes are held", held)
	}
}
