package fakevllm_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

const (
	pathResponses = "/v1/responses"
	pathMessages  = "/v1/messages"
	hello         = `"messages":[{"role":"user","content":"hi"}]`
)

// A conversation has the same answer on all routes that accept conversations.
func TestAgentsRoutes_SameAnswerAsChat(t *testing.T) {
	t.Parallel()
	s := fakevllm.StartTest(t, fakevllm.Options{})
	want := fakevllm.ExpectedChat([]fakevllm.Message{{Role: "system", Content: "short"}, {Role: "user", Content: "hi"}}, fakevllm.Sampling{MaxTokens: 9})
	for _, tc := range []struct{ path, body string }{
		{pathResponses, `{"input":"hi","instructions":"short","max_output_tokens":9`},
		{pathResponses, `{"input":[{"role":"user","content":[{"type":"input_text","text":"hi"}]}],"instructions":"short","max_output_tokens":9`},
		{pathMessages, `{"model":"fake-model","system":"short",` + hello + `,"max_tokens":9`},
		{pathMessages, `{"model":"fake-model","system":[{"type":"text","text":"short","cache_control":{}}],"messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}],"max_tokens":9`},
	} {
		r := post(t, client(t), s.URL()+tc.path, "", tc.body+`}`)
		text, err := json.Marshal(want.Text)
		require.NoError(t, err)
		var v, w any
		if err := json.Unmarshal([]byte(r.body), &v); err != nil {
			t.Fatalf("%s: %d %v: %s", tc.body, r.status, err, r.body)
		}
		require.NoError(t, json.Unmarshal(text, &w))
		assert.True(t, holds(v, w), "%s: %s\nsays not %s", tc.body, r.body, text)
		stream := post(t, client(t), s.URL()+tc.path, "", tc.body+`,"stream":true}`)
		if said := deltas(t, stream.body); said != want.Text || stream.err != nil {
			t.Errorf("%s: the stream says %q, ends with %v", tc.body, said, stream.err)
		}
	}
}

// holds reports whether a value occurs anywhere in another.
func holds(v, want any) bool {
	switch v := v.(type) {
	case map[string]any:
		for _, inner := range v {
			if holds(inner, want) {
				return true
			}
		}
	case []any:
		for _, inner := range v {
			if holds(inner, want) {
				return true
			}
		}
	case string:
		return v == want
	}
	return false
}

// deltas joins the texts and the call arguments of a stream's deltas. It checks that events
// have the name of their type, and that those of /v1/responses are numbered.
func deltas(t *testing.T, stream string) (said string) {
	t.Helper()
	number := 0
	for event := range strings.SplitSeq(strings.TrimSuffix(stream, "\n\n"), "\n\n") {
		name, data, _ := strings.Cut(event, "\n")
		var v struct {
			Type     string
			Delta    json.RawMessage
			Sequence *int `json:"sequence_number"`
		}
		require.NoError(t, json.Unmarshal([]byte(strings.TrimPrefix(data, "data: ")), &v), "%q", event)
		if name != "event: "+v.Type || strings.HasPrefix(v.Type, "response.") != (v.Sequence != nil) || v.Sequence != nil && *v.Sequence != number {
			t.Fatalf("event %d: %q", number, event)
		}
		number++
		var s string
		var block struct {
			Text string
			Part string `json:"partial_json"`
		}
		if json.Unmarshal(v.Delta, &s) != nil && len(v.Delta) > 0 {
			require.NoError(t, json.Unmarshal(v.Delta, &block), "%q", event)
		}
		said += s + block.Text + block.Part
	}
	return said
}

func TestAgentsRoutes_TransferParams(t *testing.T) {
	t.Parallel()
	for path, bodies := range map[string][2]string{
		pathResponses: {`{"input":"hi","max_output_tokens":1,"ignore_eos":true,"store":false`, `{"input":"hi","max_output_tokens":9`},
		pathMessages:  {`{"model":"fake-model",` + hello + `,"max_tokens":1`, `{"model":"fake-model",` + hello + `,"max_tokens":9`},
	} {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s %v", path[4:], stream), func(t *testing.T) {
				t.Parallel()
				p, d := pair(t, fakevllm.Options{StrictPrefill: true}, fakevllm.Options{StrictPrefill: true})
				var v struct {
					KV json.RawMessage `json:"kv_transfer_params"`
				}
				first := post(t, client(t), p.URL()+path, "a", bodies[0]+`,"kv_transfer_params":`+prefillForm+`}`)
				if err := json.Unmarshal([]byte(first.body), &v); err != nil || len(v.KV) < 10 {
					t.Fatalf("%d %v: %s", first.status, err, first.body)
				}
				second := post(t, client(t), d.URL()+path, "a", fmt.Sprintf(`%s,"stream":%v,"kv_transfer_params":%s}`, bodies[1], stream, v.KV))
				c := d.Counters()
				assert.True(t, second.status == http.StatusOK && c.TransfersLoaded == 1 && c.LocalPrefills == 0,
					"%d %s: %+v", second.status, second.body, c)
				assert.Len(t, append(p.Violations(), d.Violations()...), 0)
				// The blocks were fetched before, so the load fails before the first token.
				again := post(t, client(t), d.URL()+path, "a", fmt.Sprintf(`%s,"stream":%v,"kv_transfer_params":%s}`, bodies[1], stream, v.KV))
				switch {
				case !stream:
					assert.Equal(t, http.StatusInternalServerError, again.status, again.body)
				case path == pathResponses: // vLLM cuts the stream
					assert.True(t, again.err != nil && deltas(t, again.body) == "", "%v: %s", again.err, again.body)
				case again.err != nil || !strings.HasSuffix(again.body, "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"internal_error\",\"message\":\"Internal server error\"}}\n\n"):
					t.Errorf("%v: %s", again.err, again.body)
				}
			})
		}
	}
}

func TestAgentsRoutesCallTools(t *testing.T) {
	t.Parallel()
	s := fakevllm.StartTest(t, fakevllm.Options{})
	for path, body := range map[string]string{
		pathResponses: `{"input":"hi","tools":[{"type":"function","name":"look"}],"tool_choice":{"type":"function","name":"look"},"max_output_tokens":99`,
		pathMessages:  `{"model":"fake-model",` + hello + `,"tools":[{"name":"look","input_schema":{}}],"tool_choice":{"type":"any"},"max_tokens":99`,
	} {
		whole := post(t, client(t), s.URL()+path, "", body+`}`)
		stream := post(t, client(t), s.URL()+path, "", body+`,"stream":true}`)
		arguments := deltas(t, stream.body)
		var v map[string]any
		if err := json.Unmarshal([]byte(arguments), &v); err != nil || whole.status != http.StatusOK || !strings.Contains(whole.body, `"name":"look"`) ||
			!strings.Contains(stream.body, `"name":"look"`) {
			t.Errorf("%s: %v\n%s\n%s", path, err, whole.body, stream.body)
		}
		cut := post(t, client(t), s.URL()+path, "", strings.Replace(body, "99", "1", 1)+`}`)
		assert.Equal(t, map[string]int{pathResponses: 400, pathMessages: 500}[path], cut.status,
			"%s: half a call: %s", path, cut.body)
	}
}

// The answer to a background request is a queued response, or a stream of events. Both are stored, also if
// the client of the stream leaves.
func TestBackground(t *testing.T) {
	t.Parallel()
	s := fakevllm.StartTest(t, fakevllm.Options{StoreResponses: true})
	const body = `{"input":"hi","max_output_tokens":4,"background":true`
	if queued := post(t, client(t), s.URL()+pathResponses, "", body+`}`); queued.status != http.StatusOK || !strings.Contains(queued.body, `"status":"queued"`) {
		t.Errorf("%d %s", queued.status, queued.body)
	}
	stream := post(t, client(t), s.URL()+pathResponses, "", body+`,"stream":true}`)
	if got := stream.header.Get("Content-Type"); stream.status != http.StatusOK || !strings.HasPrefix(got, "text/event-stream") || deltas(t, stream.body) == "" {
		t.Errorf("%d %s %s", stream.status, got, stream.body)
	}
	id := regexp.MustCompile(`resp_[0-9a-f]+`).FindString(stream.body)
	if stored := get(t, client(t), s.URL()+pathResponses+"/"+id); stored.status != http.StatusOK || !strings.Contains(stored.body, `"status":"incomplete"`) {
		t.Errorf("%d %s", stored.status, stored.body)
	}
	slow := fakevllm.StartTest(t, fakevllm.Options{StoreResponses: true, ITL: 5 * time.Millisecond})
	resp, err := client(t).Do(jsonRequest(t, slow.URL()+pathResponses, "", `{"input":"hi","max_output_tokens":200,"background":true,"stream":true}`))
	require.NoError(t, err)
	begin := make([]byte, 400)
	_, err = io.ReadFull(resp.Body, begin)
	require.NoError(t, err)
	_ = resp.Body.Close()
	id = regexp.MustCompile(`resp_[0-9a-f]+`).FindString(string(begin))
	eventually(t, func() error {
		if stored := get(t, client(t), slow.URL()+pathResponses+"/"+id); !strings.Contains(stored.body, `"status":"incomplete"`) {
			return fmt.Errorf("%d %s", stored.status, stored.body)
		}
		return nil
	})
}

func TestAgentsRoutesRefuse(t *testing.T) {
	t.Parallel()
	s := fakevllm.StartTest(t, fakevllm.Options{MaxModelLen: 64})
	for _, tc := range []struct {
		path, body string
		status     int
		says       string
	}{
		{pathResponses, `{"input":5}`, 400, "body.input"},
		{pathResponses, `{"input":"x","max_output_tokens":0}`, 400, "max_tokens must be at least 1"},
		{pathResponses, `{"input":"x","store":"x"}`, 400, "body.store"},
		{pathResponses, `{"input":"x","background":true,"store":false}`, 400, "background can only be used"},
		{pathResponses, `{"input":"x","background":true}`, 400, "does not support the background mode"},
		{pathResponses, `{"input":"x","previous_response_id":"resp_1"}`, 404, "Response with id 'resp_1' not found."},
		{pathResponses, `{"input":"x","tool_choice":"required"}`, 400, "Tool choice 'required' must be specified with 'tools' parameter."},
		{pathResponses, `{"input":"x","tool_choice":"required","tools":[]}`, 400, "Tool choice 'required' must be specified with 'tools' parameter."},
		{pathResponses, `{"input":"x","tool_choice":{"type":"function","name":"look"}}`, 400, "Tool choice 'function' not found in 'tools' parameter."},
		{pathResponses, `{"input":"x","tool_choice":{"type":"function"},"tools":[{"type":"function","name":"look"}]}`, 400, "Tool choice 'function' not found in 'tools' parameter."},
		{pathResponses, `{"input":"x","tool_choice":"auto","max_output_tokens":9}`, 200, `"type":"output_text"`},
		{pathMessages, `{"model":"fake-model",` + hello + `,"max_tokens":9,"tool_choice":{"type":"any"}}`, 200, `"type":"text"`},
		{pathMessages, `{"model":"fake-model",` + hello + `,"max_tokens":9,"tool_choice":{"type":"tool","name":"look"}}`, 200, `"type":"text"`},
		{pathMessages, `{"model":"fake-model",` + hello + `,"max_tokens":9,"tool_choice":{"type":"tool"}}`, 400, "tool_choice.name is required when type is 'tool'"},
		{pathMessages, `{"model":"fake-model",` + hello + `,"max_tokens":0}`, 400, "max_tokens must be positive"},
		{pathMessages, `{"model":"fake-model",` + hello + `,"max_tokens":65}`, 400, `{"type":"error","error":{"type":"BadRequestError"`},
		{pathMessages, `{"model":"fake-model",` + hello + `,"max_tokens":1,"stop_sequences":"x"}`, 400, "body.stop_sequences"},
		{pathMessages, `{"model":"fake-model","messages":[{"role":"tool","content":"x"}],"max_tokens":1}`, 400, "body.messages.0.role"},
	} {
		r := post(t, client(t), s.URL()+tc.path, "", tc.body)
		assert.True(t, r.status == tc.status && strings.Contains(r.body, tc.says), "%s: %d %s", tc.body, r.status, r.body)
	}
}
