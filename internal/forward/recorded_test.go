package forward_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/forward/relay"
	"github.com/pdmesh/pdmesh/internal/health"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/test/agents"
)

// The recorded requests of three coding agents, turn by turn, go through prefill and decode over each
// connector. They get the answers of a single engine, event by event. Over Mooncake, decode serves
// /v1/messages decode-only, with the reason.
func TestRecordedAgents(t *testing.T) {
	t.Parallel()
	list, err := agents.Recordings()
	require.NoError(t, err)
	for _, rec := range list {
		for _, mode := range []fakevllm.Mode{fakevllm.NIXL, fakevllm.Plain, fakevllm.Mooncake} {
			t.Run(rec.Agent+" "+string(mode), func(t *testing.T) {
				t.Parallel()
				r := startScripted(t, mode, 1, 1, rec.Turns, nil, func(*health.Options) {})
				why := ""
				if mode == fakevllm.Mooncake && rec.Exchanges[0].Path() == messagesPath {
					why = "messages_need_length"
				}
				single := fakevllm.StartTest(t, fakevllm.Options{Models: []string{model}, PromptTokensDetails: true, Turns: rec.Turns})
				for i := range rec.Exchanges {
					r.replay(&rec.Exchanges[i], single, mode, why)
				}
				want := int64(len(rec.Exchanges))
				p, d := r.P[0].Counters(), r.D[0].Counters()
				if why != "" {
					want = 0
				}
				if p.Requests != want || d.Requests != int64(len(rec.Exchanges)) || why == "" && d.LocalPrefills != 0 {
					t.Errorf("%d legs to prefill, %d to decode, which computed %d prompts", p.Requests, d.Requests, d.LocalPrefills)
				}
				assert.False(t, mode != fakevllm.Plain && d.TransfersLoaded != want,
					"%d KV transfers were loaded, want %d", d.TransfersLoaded, want)
				r.checkEngines()
			})
		}
	}
}

// Without a stream the same requests get equal whole answers.
func TestRecordedAgentsWhole(t *testing.T) {
	t.Parallel()
	list, err := agents.Recordings()
	require.NoError(t, err)
	for _, rec := range list {
		t.Run(rec.Agent, func(t *testing.T) {
			t.Parallel()
			r := startScripted(t, fakevllm.NIXL, 1, 1, rec.Turns, nil, func(*health.Options) {})
			single := fakevllm.StartTest(t, fakevllm.Options{Models: []string{model}, PromptTokensDetails: true, Turns: rec.Turns})
			for _, x := range rec.Exchanges {
				x.Body = bytes.Replace(x.Body, []byte(`"stream":true`), []byte(`"stream":false`), 1)
				want := x
				require.NoError(t, x.Ask(t.Context(), http.DefaultClient, r.URL))
				require.NoError(t, want.Ask(t.Context(), http.DefaultClient, single.URL()))
				require.True(t, x.Status == http.StatusOK && len(x.Events) == 1 && x.Events[0][0] == '{',
					"%d %.300q", x.Status, x.Events)
				// As the data of an event, the answers are normalized like events.
				r.sameEvents([]string{"whole\ndata: " + x.Events[0]}, []string{"whole\ndata: " + want.Events[0]})
			}
			if d := r.D[0].Counters(); d.LocalPrefills != 0 || d.TransfersLoaded != int64(len(rec.Exchanges)) {
				t.Errorf("decode computed %d prompts and loaded %d KV transfers", d.LocalPrefills, d.TransfersLoaded)
			}
			r.checkEngines()
		})
	}
}

// replay sends a recorded request and compares legs and answer. why is the expected reason for decode-only,
// "" for none.
func (r *rig) replay(x *agents.Exchange, single *fakevllm.Server, mode fakevllm.Mode, why string) {
	r.t.Helper()
	got, want := *x, *x
	require.NoError(r.t, got.Ask(r.t.Context(), http.DefaultClient, r.URL))
	require.NoError(r.t, want.Ask(r.t.Context(), http.DefaultClient, single.URL()))
	r.sameEvents(x.Events, want.Events) // the engine answers as it answered the agent
	r.sameEvents(got.Events, want.Events)
	if e := r.entry(); e.DecodeOnly != why || e.Outcome != relay.OutcomeOK || e.Endpoint != x.Path() || !e.Stream {
		r.t.Errorf("entry %+v", e)
	}
	decode := posted(r.D[0])
	r.sameBody(x.Body, decode[len(decode)-1].Body, mode != fakevllm.Plain && why == "")
	r.sameHeader(x.Header, decode[len(decode)-1].Header)
	if why == "" {
		prefill := posted(r.P[0])
		r.samePrompt(x.Body, prefill[len(prefill)-1].Body)
	}
}

func (r *rig) sameEvents(got, want []string) {
	r.t.Helper()
	require.Len(r.t, got, len(want), "events")
	for i := range want {
		g, err := agents.Steady(got[i])
		require.NoError(r.t, err)
		w, err := agents.Steady(want[i])
		require.NoError(r.t, err)
		assert.Equal(r.t, w, g, "event %d\n%s, want\n%s", i, g, w)
	}
}

// sameBody compares decode's body with the client's, byte for byte. With transfer, it has one more member,
// the transfer params.
func (r *rig) sameBody(sent, got []byte, transfer bool) {
	r.t.Helper()
	if !transfer {
		assert.True(r.t, bytes.Equal(sent, got), "decode got\n%.300s, sent was\n%.300s", got, sent)
		return
	}
	more := len(got) - len(sent)
	at := 0
	for at < len(sent) && sent[at] == got[at] {
		at++
	}
	require.True(r.t, more > 0 && bytes.Equal(sent[at:], got[at+more:]),
		"decode got\n%.300s, sent was\n%.300s", got, sent)
	// at may be too high: the inserted part may begin like the rest of the body, with a quote or a comma.
	var v map[string]json.RawMessage
	for back := range min(at, 4) {
		part := bytes.Trim(got[at-back:at-back+more], ",")
		if json.Unmarshal(slices.Concat([]byte("{"), part, []byte("}")), &v) == nil {
			break
		}
	}
	if len(v) != 1 || v["kv_transfer_params"] == nil {
		r.t.Errorf("decode's body has %s besides", got[at:at+more])
	}
}

// sameHeader checks that the agent's own header and that of the API reach the engine.
func (r *rig) sameHeader(sent, got http.Header) {
	r.t.Helper()
	for name, values := range sent {
		assert.False(r.t, name != "Connection" && name != "Accept-Encoding" && !slices.Equal(got[name], values),
			"decode got %s: %q, sent was %q", name, got[name], values)
	}
}

// samePrompt checks that prefill gets the client's prompt, for one token and no stream.
func (r *rig) samePrompt(sent, got []byte) {
	r.t.Helper()
	var s, g map[string]json.RawMessage
	require.NoError(r.t, json.Unmarshal(sent, &s))
	require.NoError(r.t, json.Unmarshal(got, &g))
	for _, name := range []string{"messages", "input", "system", "tools", "tool_choice", "thinking", "reasoning"} {
		assert.True(r.t, bytes.Equal(s[name], g[name]),
			"prefill got another %s:\n%.300s, sent was\n%.300s", name, g[name], s[name])
	}
	if limit := string(g["max_tokens"]) + string(g["max_output_tokens"]); limit != "1" || string(g["stream"]) == "true" {
		r.t.Errorf("prefill is to make %s tokens, stream %s", limit, g["stream"])
	}
}
