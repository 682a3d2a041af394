package forward_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/forward/bypass"
	"github.com/pdmesh/pdmesh/internal/forward/relay"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

const (
	responsesPath = "/v1/responses"
	messagesPath  = "/v1/messages"
)

// agentBody returns a request to one of the two APIs of coding agents.
func agentBody(path string, stream bool, more string) string {
	if path == responsesPath {
		return fmt.Sprintf(`{"model":"m","instructions":"be brief","input":[{"role":"user","content":[{"type":"input_text","text":"tell me of the sea"}]}],`+
			`"max_output_tokens":12,"store":true,"stop":["zzz"],"stream":%v%s}`, stream, more)
	}
	return fmt.Sprintf(`{"model":"m","max_tokens":12,"system":[{"type":"text","text":"be brief","cache_control":{"type":"ephemeral"}}],`+
		`"messages":[{"role":"user","content":"tell me of the sea"}],"stop_sequences":["zzz"],"stream":%v%s}`, stream, more)
}

// agentText returns the text of an answer and, for a stream, the names of its events.
func (a answer) agentText(t *testing.T) (text, names string) {
	t.Helper()
	if !strings.HasPrefix(a.header.Get("Content-Type"), "text/event-stream") {
		var v struct {
			Content []struct{ Text string }
			Output  []struct{ Content []struct{ Text string } }
		}
		require.NoError(t, json.Unmarshal(a.body, &v), "%s", a.body)
		for _, c := range v.Content {
			text += c.Text
		}
		for _, o := range v.Output {
			for _, c := range o.Content {
				text += c.Text
			}
		}
		return text, ""
	}
	for line := range strings.SplitSeq(string(a.body), "\n") {
		if name, ok := strings.CutPrefix(line, "event: "); ok && !strings.HasSuffix(names, name+" ") {
			names += name + " "
		}
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok {
			continue
		}
		var v struct {
			Type  string
			Delta json.RawMessage
		}
		require.NoError(t, json.Unmarshal([]byte(data), &v), data)
		var s string
		switch v.Type {
		case "response.output_text.delta":
			_ = json.Unmarshal(v.Delta, &s)
		case "content_block_delta":
			var d struct{ Text string }
			_ = json.Unmarshal(v.Delta, &d)
			s = d.Text
		}
		text += s
	}
	return text, names
}

// wholeStream returns the event names of a complete stream, without consecutive repetitions.
func wholeStream(path string) string {
	if path == responsesPath {
		return "response.created response.in_progress response.output_item.added response.content_part.added response.output_text.delta " +
			"response.output_text.done response.content_part.done response.output_item.done response.completed "
	}
	return "message_start content_block_start content_block_delta content_block_stop message_delta message_stop "
}

// checkAgentAnswer compares an answer with the model's text.
func (r *rig) checkAgentAnswer(a answer, path, body string) {
	r.t.Helper()
	want, err := fakevllm.ExpectedAt(path, []byte(body), 0)
	require.NoError(r.t, err)
	require.True(r.t, a.err == nil && a.status == http.StatusOK, "status %d, err %v: %s", a.status, a.err, a.body)
	text, names := a.agentText(r.t)
	require.True(r.t, text == want[0].Text && text != "", "text %q, want %q", text, want[0].Text)
	require.False(r.t, names != "" && names != wholeStream(path), "events %s", names)
	require.False(r.t, bytes.Contains(a.body, []byte("remote_engine_id")),
		"the answer contains transfer params: %s", a.body)
}

// Requests of every API go through a pair of engines.
func TestPairs_EveryAPI(t *testing.T) {
	t.Parallel()
	for _, mode := range []fakevllm.Mode{fakevllm.NIXL, fakevllm.Plain, fakevllm.LMCache, fakevllm.Mooncake} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			eachAPI(t, both(), func(t *testing.T, q scenario) {
				r, why, pairs := start(t, mode, 1, 1, nil), "", int64(1)
				if mode == fakevllm.Mooncake && q.path == messagesPath { // its legs would wait for each other in vain
					why, pairs = "messages_need_length", 0
				}
				a := r.postScenario(q)
				r.checkWhole(q, a)
				d, p := r.D[0].Counters(), r.P[0].Counters()
				assert.True(t, d.LocalPrefills == 1-pairs && p.Requests == pairs && d.Requests == 1,
					"decode computed %d prompts; %d and %d requests", d.LocalPrefills, p.Requests, d.Requests)
				if (mode == fakevllm.NIXL || mode == fakevllm.Mooncake) && (p.TransfersMade != pairs || d.TransfersLoaded != pairs) {
					t.Errorf("%d KV transfers were made, %d loaded", p.TransfersMade, d.TransfersLoaded)
				}
				assert.True(t, a.header.Get("X-PD-Decode-Only") == why && !bytes.Contains(a.body, []byte("remote_engine_id")),
					"decode-only: %q, body %s", a.header.Get("X-PD-Decode-Only"), a.body)
				if e := r.entry(); e.DecodeOnly != why || e.Outcome != relay.OutcomeOK || e.Endpoint != q.path || (e.Prefill == "") != (why != "") || e.Stream != q.stream {
					t.Errorf("entry %+v", e)
				}
				r.checkEngines()
			})
		})
	}
}

// script lets an engine fail on every route.
func (r *rig) script(s *fakevllm.Server, f fakevllm.Fault) {
	r.t.Helper()
	f.Path = "/v1/*"
	require.NoError(r.t, s.Script(f))
}

// An instance is not blamed for a response that it does not have.
func TestStoredResponses_NoBlame(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.NIXL, 1, 2, nil)
	a := r.post(responsesPath, agentBody(responsesPath, false, `,"previous_response_id":"resp_1"`))
	a.require(t, http.StatusNotFound, "Response with id 'resp_1' not found.")
	queried := len(posted(r.D[0])) + len(posted(r.D[1]))
	assert.True(t, queried >= 2 && len(posted(r.P[0])) == 0, "%d decode instances were queried", queried)
	r.noneTroubled()
	e := r.entry()
	assert.Equal(t, bypass.StoredResponse, e.DecodeOnly, "entry %+v", e)
	r.checkEngines()
}

// The reason for decode-only is that of the attempt that answered; there is none if that attempt had a
// prefill.
func TestDecodeOnlyReason_OfFinalAttempt(t *testing.T) {
	t.Parallel()
	eachAPI(t, both(), func(t *testing.T, q scenario) {
		r := start(t, fakevllm.NIXL, 1, 2, nil)
		script(t, r.P[0], fakevllm.Fault{Kind: fakevllm.FaultNoKV, Times: 1})
		script(t, r.P[0], fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: http.StatusRequestEntityTooLarge})
		script(t, r.D[0], fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: 500, Times: 1})
		a := r.postScenario(q)
		r.checkRefused(q, a, http.StatusRequestEntityTooLarge, "")
		assert.Equal(t, "", a.header.Get("X-PD-Decode-Only"), "X-PD-Decode-Only")
		e := r.entry()
		assert.True(t, e.DecodeOnly == "" && e.Failed == 2, "entry %+v", e)
	})
}
