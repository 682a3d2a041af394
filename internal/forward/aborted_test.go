package forward_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/internal/forward/relay"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/transport/upstream"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

const completionsPath = "/v1/completions"

// An engine that shuts down ends its requests with the finish reason "abort". After the commit the
// answer is lost, in the form of each API.
func TestAbort_AfterCommit(t *testing.T) {
	t.Parallel()
	for _, path := range []string{completionsPath, chatPath, messagesPath, generatePath} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			r := start(t, fakevllm.NIXL, 1, 2, nil)
			script(t, r.D[0], fakevllm.Fault{Kind: fakevllm.FaultAbort, At: fakevllm.AfterTokens, Tokens: 2, Times: 1})
			q := scenario{path, true}
			body := `{"model":"m","prompt":"tell me of the sea","max_tokens":12,"stream":true}`
			if path != completionsPath {
				body = q.body("")
			}
			a := r.post(path, body)
			if path == completionsPath {
				q.path = chatPath // its errors and ends have the same form
			}
			r.checkBroken(q, a)
			if bytes.Contains(a.body, []byte("abort")) || bytes.Contains(a.body, []byte(`"stop_reason":null,"stop_sequence":null},"usage"`)) {
				t.Errorf("the engine's end goes out: %s", a.body)
			}
			if e := r.entry(); e.Outcome != relay.OutcomeBroken || e.Failure != leg.Aborted || e.Failed != 1 || !slices.Equal(r.rec.failed, []string{"decode/aborted"}) {
				t.Errorf("failed %q, entry %+v", r.rec.failed, e)
			}
			r.checkEngines()
		})
	}
}

// On /v1/responses only some engines report an abort: those with Harmony's parser, by the status
// "cancelled" of the response (vLLM 0.32, entrypoints/openai/responses/serving.py).
func TestAbort_AfterCommitOnResponses(t *testing.T) {
	t.Parallel()
	const begin = "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"object\":\"response\",\"status\":\"in_progress\"}}\n\n"
	const text = "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"x\"}\n\n"
	const end = "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"object\":\"response\",\"status\":\"cancelled\",\"usage\":{\"output_tokens\":1}}}\n\n"
	got := relayOnce(t, &scriptedClient{
		prefill: []byte(`{"object":"response"}`), header: http.Header{"Content-Type": {"text/event-stream; charset=utf-8"}},
		answer: []byte(begin + text + end), length: -1, end: io.EOF,
	}, responsesPath)
	if !got.broken || !strings.HasPrefix(string(got.body), begin+text+"event: error\n") || bytes.Contains(got.body, []byte("cancelled")) {
		t.Errorf("broken %v: %s", got.broken, got.body)
	}
}

// twoLegs is an upstream client that answers the first decode leg and the second one differently.
type twoLegs struct {
	scriptedClient

	first []byte
}

func (c *twoLegs) Do(ctx context.Context, r *upstream.Request) (*upstream.Response, error) {
	leg := c.scriptedClient
	if r.Instance.Role == instance.Decode && c.first != nil {
		leg.answer, c.first = c.first, nil
	}
	return leg.Do(ctx, r)
}

// An engine of /v1/messages ends the block before it reports an abort. However its events are split into
// reads, the client gets one block.
func TestAbort_ContinuedMessages(t *testing.T) {
	t.Parallel()
	event := func(data string) string {
		name, _, _ := strings.Cut(data[1:], `"`)
		return "event: " + name + "\ndata: {\"type\":" + data + "}\n\n"
	}
	begin := event(`"message_start","message":{"id":"a"}`) + event(`"content_block_start","content_block":{"type":"thinking"}`) +
		event(`"content_block_delta","delta":{"type":"thinking_delta","thinking":"x"}`)
	signed := event(`"content_block_delta","delta":{"type":"signature_delta","signature":"s"}`) + event(`"content_block_stop"`)
	end := func(reason string) string {
		return event(`"message_delta","delta":{"stop_reason":`+reason+`}`) + event(`"message_stop"`)
	}
	whole := begin + event(`"content_block_delta","delta":{"type":"thinking_delta","thinking":"y"}`) + signed +
		event(`"content_block_start","content_block":{"type":"text"}`) + event(`"content_block_delta","delta":{"type":"text_delta","text":"z"}`) +
		event(`"content_block_stop"`) + end(`"end_turn"`)
	for size := range 200 {
		got := relayBody(t, &twoLegs{scriptedClient{
			prefill: []byte(`{"content":[]}`), header: http.Header{"Content-Type": {"text/event-stream; charset=utf-8"}},
			answer: []byte(whole), length: -1, end: io.EOF, cuts: []byte{byte(size)},
		}, []byte(begin + signed + end("null"))}, messagesPath, `{"model":"m","messages":[],"max_tokens":9,"stream":true,"temperature":0}`, 0, 1)
		events, _ := rawEvents(got.body)
		events = slices.DeleteFunc(events, func(e []byte) bool { return e[0] == ':' })
		all := string(bytes.Join(events, nil))
		require.True(t, !got.broken && all == whole, "reads of %d bytes: broken %v: %s", size+1, got.broken, got.body)
	}
}

// An abort before the commit is retried, with or without tokens, in every API. The KV transfer is spent: vLLM
// has prefill free the blocks of a request that it aborts in its queue.
func TestAbort_BeforeCommit(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		path   string
		stream bool
		fault  fakevllm.Fault
	}{
		{completionsPath, true, fakevllm.Fault{}}, {completionsPath, false, fakevllm.Fault{}},
		{completionsPath, false, fakevllm.Fault{At: fakevllm.AfterTokens, Tokens: 2}},
		{chatPath, true, fakevllm.Fault{}}, {chatPath, false, fakevllm.Fault{At: fakevllm.AfterTokens, Tokens: 2}},
		{messagesPath, true, fakevllm.Fault{}}, {messagesPath, false, fakevllm.Fault{}},
		{messagesPath, false, fakevllm.Fault{At: fakevllm.AfterTokens, Tokens: 2}},
		{generatePath, true, fakevllm.Fault{}}, {generatePath, false, fakevllm.Fault{At: fakevllm.AfterTokens, Tokens: 2}},
		{responsesPath, true, fakevllm.Fault{}}, {responsesPath, false, fakevllm.Fault{}},
	} {
		q := scenario{tc.path, tc.stream}
		t.Run(q.String()+string(tc.fault.At), func(t *testing.T) {
			t.Parallel()
			r := start(t, fakevllm.NIXL, 1, 2, func(o *forward.Options) { o.MaxAttempts = 2 })
			tc.fault.Kind, tc.fault.Times = fakevllm.FaultAbort, 1
			script(t, r.D[0], tc.fault)
			if tc.path == completionsPath {
				body := `{"model":"m","prompt":"tell me of the sea","max_tokens":12,"stream":false}`
				if tc.stream {
					body = strings.Replace(body, "false", "true", 1)
				}
				r.checkComplete(r.post(tc.path, body), false, body)
			} else {
				r.checkServed(q)
			}
			if e := r.entry(); e.Outcome != relay.OutcomeOK || e.Failed != 1 || e.DecodeOnly != "" || r.rec.retried() != "decode/aborted" {
				t.Errorf("retried %q, entry %+v", r.rec.retried(), e)
			}
			assert.EqualValues(t, 2, legs(r.P), "prefills")
			r.checkEngines()
		})
	}
}

// vLLM before 0.32 sends no finish reason at all on /inference/v1/generate when it aborts.
func TestAbort_NoFinishReason(t *testing.T) {
	t.Parallel()
	const token = "data: {\"request_id\":\"a\",\"choices\":[{\"index\":0,\"finish_reason\":null,\"token_ids\":[7]}]}\n\n"
	const last = "data: {\"request_id\":\"a\",\"choices\":[{\"index\":0,\"finish_reason\":\"length\",\"token_ids\":[7]}]}\n\n"
	const done = "data: [DONE]\n\n"
	for answer, lost := range map[string]bool{token + done: true, token + last + done: false, last + done: false} {
		got := relayOnce(t, &scriptedClient{
			prefill: []byte(`{"choices":[]}`), header: http.Header{"Content-Type": {"text/event-stream; charset=utf-8"}},
			answer: []byte(answer), length: -1, end: io.EOF,
		}, openai.Generate.Path())
		if got.status != http.StatusOK || got.broken != lost || bytes.Contains(got.body, []byte("[DONE]")) == lost {
			t.Errorf("%q: broken %v: %s", answer, got.broken, got.body)
		}
	}
}
