package fakevllm_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// theTurns returns a turn with reasoning, text and two tool calls, and a turn with text.
func theTurns() []fakevllm.Turn {
	return []fakevllm.Turn{
		{Thinking: "a look first, ünïcödé too", Text: "I look.", Calls: []fakevllm.ToolCall{
			{Name: "look", Input: json.RawMessage(`{"path": "/a file with a long name"}`)}, {Name: "list", Input: json.RawMessage(`{}`)},
		}},
		{Text: "There it is."},
	}
}

const (
	someTools  = `"tools":[{"name":"look","input_schema":{}},{"name":"list","input_schema":{}}]`
	aTurn      = `{"role":"assistant","content":[{"type":"text","text":"I look."},{"type":"tool_use","id":"1","name":"look","input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"x"}]}`
	someItems  = `{"type":"reasoning","id":"rs_1","summary":[]},{"role":"assistant","content":"I look."},{"type":"function_call","call_id":"1","name":"look","arguments":"{}"},{"type":"function_call_output","call_id":"1","output":"x"}`
	itemsTools = `"tools":[{"type":"function","name":"look"},{"type":"function","name":"list"}]`
)

// conversation returns a request after the given number of turns.
func conversation(path string, turns int, more string) string {
	if path == pathMessages {
		return `{"model":"fake-model","messages":[{"role":"user","content":"hi"}` + strings.Repeat(","+aTurn, turns) + `],"max_tokens":200` + more + `}`
	}
	return `{"model":"fake-model","input":[{"role":"user","content":"hi"}` + strings.Repeat(","+someItems, turns) + `],"max_output_tokens":200` + more + `}`
}

func toolsOf(path string) string {
	if path == pathMessages {
		return "," + someTools
	}
	return "," + itemsTools
}

// shown returns the parts of an answer.
func shown(t *testing.T, body string) (out []string) {
	t.Helper()
	var v struct {
		Content []struct {
			Type, Thinking, Text, Name string
			Input                      json.RawMessage
		}
		Output []struct {
			Type, Name, Arguments string
			Content               []struct{ Text string }
		}
	}
	require.NoError(t, json.Unmarshal([]byte(body), &v), body)
	for _, c := range v.Content {
		out = append(out, c.Thinking+c.Text+c.Name+string(c.Input))
	}
	for _, o := range v.Output {
		s := o.Name + o.Arguments
		for _, c := range o.Content {
			s += c.Text
		}
		out = append(out, s)
	}
	return out
}

// The model answers with the scripted turn that the conversation has reached, on both
// routes, whole and as a stream.
func TestTurns(t *testing.T) {
	t.Parallel()
	s := fakevllm.StartTest(t, fakevllm.Options{Turns: theTurns()})
	want := []string{
		fmt.Sprint([]string{"a look first, ünïcödé too", "I look.", `look{"path": "/a file with a long name"}`, "list{}"}),
		fmt.Sprint([]string{"There it is."}),
	}
	for _, path := range []string{pathResponses, pathMessages} {
		for turn, said := range want {
			whole := post(t, client(t), s.URL()+path, "a", conversation(path, turn, toolsOf(path)))
			got := fmt.Sprint(shown(t, whole.body))
			assert.True(t, got == said && whole.status == http.StatusOK, "%s, turn %d: %s, want %s", path, turn, got, said)
			stream := post(t, client(t), s.URL()+path, "a", conversation(path, turn, toolsOf(path)+`,"stream":true`))
			deltas(t, stream.body)
			got = fmt.Sprint(rebuilt(t, stream.body))
			assert.True(t, got == said && stream.err == nil, "%s, turn %d: the stream says %s, want %s", path, turn, got, said)
		}
		own := post(t, client(t), s.URL()+path, "a", conversation(path, 2, toolsOf(path)))
		if got := fmt.Sprint(shown(t, own.body)); strings.Contains(got, "look") || strings.Contains(got, "There") {
			t.Errorf("%s, behind the last turn: %s", path, got)
		}
	}
	for _, more := range []string{"", `,"tools":[{"name":"look","input_schema":{}}]`, "," + someTools + `,"tool_choice":{"type":"any"}`} {
		r := post(t, client(t), s.URL()+pathMessages, "a", conversation(pathMessages, 0, more))
		assert.True(t, !strings.Contains(r.body, "I look.") && r.status == http.StatusOK, "with %q: %s", more, r.body)
	}
}

// rebuilt returns the parts of a stream, joined from its deltas. It checks that each is
// opened and closed once, one after the other.
func rebuilt(t *testing.T, stream string) (out []string) {
	t.Helper()
	open := 0
	for line := range strings.SplitSeq(stream, "\n") {
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok {
			continue
		}
		var v struct {
			Type        string
			Index       int
			OutputIndex int                   `json:"output_index"`
			Block       struct{ Name string } `json:"content_block"`
			Item        struct{ Name string }
			Delta       json.RawMessage
		}
		require.NoError(t, json.Unmarshal([]byte(data), &v), data)
		var delta struct {
			Text, Thinking string
			Partial        string `json:"partial_json"`
		}
		var plain string
		if json.Unmarshal(v.Delta, &delta) != nil {
			_ = json.Unmarshal(v.Delta, &plain)
		}
		at := v.Index + v.OutputIndex
		switch {
		case v.Type == "content_block_start" || v.Type == "response.output_item.added":
			if open++; open != 1 || at != len(out) {
				t.Errorf("part %d begins behind %d: %s", at, len(out), data)
			}
			out = append(out, v.Block.Name+v.Item.Name)
		case v.Type == "content_block_stop" || v.Type == "response.output_item.done":
			open--
		case strings.HasSuffix(v.Type, "delta") && v.Type != "message_delta":
			out[at] += delta.Text + delta.Thinking + delta.Partial + plain
		}
	}
	return out
}

// A call that max_tokens truncates is returned as text, so that no agent runs half of it.
func TestTurns_TruncatedCall(t *testing.T) {
	t.Parallel()
	s := fakevllm.StartTest(t, fakevllm.Options{Turns: []fakevllm.Turn{{Calls: []fakevllm.ToolCall{{Name: "look", Input: json.RawMessage(`{"path":"/a/b"}`)}}}}})
	for _, path := range []string{pathResponses, pathMessages} {
		r := post(t, client(t), s.URL()+path, "a", strings.Replace(conversation(path, 0, toolsOf(path)), "200", "2", 1))
		if r.status != http.StatusOK || strings.Contains(r.body, "tool_use") || strings.Contains(r.body, "function_call") || !strings.Contains(r.body, "tool_call>") {
			t.Errorf("%s: %d %s", path, r.status, r.body)
		}
	}
}

// An invalid script is refused at the start.
func TestTurnsRefused(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{`[{}]`, `[{"text":"x","more":1}]`, `[{"calls":[{"name":"x","input":5}]}]`, `[{"calls":[{"input":{}}]}]`, `{}`, `[`} {
		if _, err := fakevllm.ReadTurns(strings.NewReader(bad)); err == nil {
			t.Errorf("%s was taken", bad)
		}
	}
	if _, err := fakevllm.Start(t.Context(), fakevllm.Options{Turns: []fakevllm.Turn{{}}}); !errors.Is(err, fakevllm.ErrOptions) {
		t.Errorf("an empty turn: %v", err)
	}
	list, err := fakevllm.ReadTurns(strings.NewReader(`[{"thinking":"x","text":"y","calls":[{"name":"z","input":{"a":1}}]}]`))
	assert.True(t, err == nil && len(list) == 1 && string(list[0].Calls[0].Input) == `{"a":1}`, "%v %v", list, err)
}
