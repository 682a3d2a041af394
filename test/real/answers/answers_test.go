package answers

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func answer(t *testing.T, contentType, body string) Answer {
	t.Helper()
	a, err := Read(&http.Response{
		StatusCode: http.StatusOK,
		Header:     http.Header{"Content-Type": {contentType}, "Date": {"today"}},
		Body:       io.NopCloser(strings.NewReader(body)),
	})
	require.NoError(t, err)
	return a
}

const (
	asJSON = "application/json"
	events = "text/event-stream; charset=utf-8"
)

func TestCompare(t *testing.T) {
	const chat = `data: {"id":"chatcmpl-1","created":1,"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}

data: {"id":"chatcmpl-1","created":1,"choices":[{"index":0,"delta":{"content":"one"},"finish_reason":null}]}

data: {"id":"chatcmpl-1","created":1,"choices":[{"index":0,"delta":{"content":" two"},"finish_reason":"stop"}]}

data: {"id":"chatcmpl-1","created":1,"choices":[],"usage":{"prompt_tokens":3}}

data: [DONE]

`
	for name, c := range map[string]struct {
		kind, want, got string
		differences     []string
	}{
		"ids and times":    {asJSON, `{"id":"cmpl-1","created":1}`, `{"id":"cmpl-2","created":2}`, nil},
		"another kind":     {asJSON, `{"id":"cmpl-1"}`, `{"id":"chatcmpl-1"}`, []string{"body.id"}},
		"another model":    {asJSON, `{"id":"tiny"}`, `{"id":"small"}`, []string{"body.id"}},
		"a time, no time":  {asJSON, `{"created":1}`, `{"created":"x"}`, []string{"body.created"}},
		"nearly equal":     {asJSON, `{"logprob":-1.00001}`, `{"logprob":-1.00002}`, nil},
		"not nearly":       {asJSON, `{"logprob":-1.1}`, `{"logprob":-1.2}`, []string{"body.logprob"}},
		"whole numbers":    {asJSON, `{"n":1000000}`, `{"n":1000001}`, []string{"body.n"}},
		"null and nothing": {asJSON, `{"a":null}`, `{}`, []string{"body.a"}},
		"more":             {asJSON, `{}`, `{"a":1}`, []string{"body.a"}},
		"lists":            {asJSON, `{"a":[1,2]}`, `{"a":[1]}`, []string{"body.a"}},
		"elements":         {asJSON, `{"a":[1,2]}`, `{"a":[1,3]}`, []string{"body.a.1"}},
		"not JSON":         {asJSON, `{`, `{{`, []string{"body"}},
		"packing of tokens": {events, chat, strings.Replace(chat, `"one"},"finish_reason":null}]}

data: {"id":"chatcmpl-1","created":1,"choices":[{"index":0,"delta":{"content":" two"}`, `"one two"}`, 1), nil},
		"another text":      {events, chat, strings.Replace(chat, "two", "three", 1), []string{"body.choice 0.delta.content"}},
		"another reason":    {events, chat, strings.Replace(chat, "stop", "length", 1), []string{"body.choice 0.finish_reason"}},
		"no end":            {events, chat, strings.Replace(chat, "data: [DONE]", "", 1), []string{"body.done"}},
		"behind the end":    {events, chat, chat + "data: {}\n\n", []string{"body.behind done"}},
		"no usage":          {events, chat, strings.Replace(chat, `"usage":{"prompt_tokens":3}`, `"usage":null`, 1), []string{"body.usage"}},
		"another member":    {events, chat, strings.Replace(chat, `"finish_reason":"stop"`, `"finish_reason":"stop","x":null`, 1), []string{"body.choice 0.x", "body.members"}},
		"a choice more":     {events, chat, strings.Replace(chat, `"choices":[]`, `"choices":[{"index":1}]`, 1), []string{"body.choice 1"}},
		"a broken event":    {events, chat, strings.Replace(chat, `"index":0,"delta"`, `"index":0"delta"`, 1), []string{"body.choice 0.delta.role", "body.members", "body.not JSON"}},
		"tool calls joined": {events, toolCall(`{"name":"f","arguments":""}`, `{"arguments":"{}"}`), toolCall(`{"name":"f","arguments":"{"}`, `{"arguments":"}"}`), nil},
		"another call":      {events, toolCall(`{"name":"f"}`, `{"arguments":"{}"}`), toolCall(`{"name":"g"}`, `{"arguments":"{}"}`), []string{"body.choice 0.delta.tool_calls.0.function.name"}},
	} {
		t.Run(name, func(t *testing.T) {
			var paths []string
			for _, d := range Compare(answer(t, c.kind, c.want), answer(t, c.kind, c.got)) {
				paths = append(paths, d.Path)
			}
			if fmt.Sprint(paths) != fmt.Sprint(c.differences) {
				t.Errorf("differences at %q, want %q", paths, c.differences)
			}
		})
	}
}

func toolCall(pieces ...string) string {
	var out strings.Builder
	for _, p := range pieces {
		fmt.Fprintf(&out, `data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"call_1","function":%s}]}}]}`+"\n\n", p)
	}
	return out.String() + "data: [DONE]\n\n"
}

func TestStatusAndHeaders(t *testing.T) {
	want, got := answer(t, asJSON, `{}`), answer(t, asJSON+"; charset=utf-8", `{}`)
	got["status"] = 500.0
	list := Compare(want, got)
	if len(list) != 2 || list[0].Path != "headers.Content-Type" || list[1].Path != "status" {
		t.Errorf("%v", list)
	}
}

func TestAllowed(t *testing.T) {
	a, err := ReadAllowed(strings.NewReader(`
- {cases: ["*"], paths: [body.id], reason: differs in each response}
- {cases: [errors/*], paths: [body.error.*], reason: other words}
- {cases: [never], paths: ["*"], reason: not needed}
- {cases: [seldom], paths: ["*"], reason: not needed, seldom: true}
`))
	require.NoError(t, err)
	list := []Difference{{Path: "body.id"}, {Path: "body.error.message"}, {Path: "body.errors"}}
	if out, special := a.Judge("errors/x", list); len(out) != 1 || out[0].Path != "body.errors" || !special {
		t.Errorf("forbidden: %v, %v", out, special)
	}
	if out, special := a.Judge("other", list); len(out) != 2 || special {
		t.Errorf("forbidden: %v, %v", out, special)
	}
	if out := a.Unused(); len(out) != 1 || !strings.HasPrefix(out[0], "never at *: ") {
		t.Errorf("unused: %q", out)
	}
	for _, bad := range []string{`[{cases: [a], paths: [b]}]`, `[{cases: [a], reason: c}]`, `[{paths: [a], reason: c}]`, `[{case: a}]`} {
		if _, err := ReadAllowed(strings.NewReader(bad)); err == nil {
			t.Errorf("accepted: %s", bad)
		}
	}
}
