package forward_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// moriioModes runs a test for both modes, against engines that speak them as vLLM does.
func moriioModes(t *testing.T, f func(t *testing.T, mode fakevllm.Mode)) {
	t.Helper()
	for _, mode := range []fakevllm.Mode{fakevllm.MoRIIORead, fakevllm.MoRIIOWrite} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			f(t, mode)
		})
	}
}

// checkHandedOver checks that decode has computed no prompt itself and has answered correctly.
func (r *rig) checkHandedOver(n int64) {
	r.t.Helper()
	loaded := total(r.D, func(c fakevllm.Counters) int64 { return c.TransfersLoaded })
	local := total(r.D, func(c fakevllm.Counters) int64 { return c.LocalPrefills })
	wrong := total(r.D, func(c fakevllm.Counters) int64 { return c.WrongKV })
	assert.True(r.t, loaded == n && local == 0 && wrong == 0,
		"%d of %d prompts came from prefill, %d computed by decode, %d wrong", loaded, n, local, wrong)
	r.checkEngines()
}

func TestMoRIIO(t *testing.T) {
	t.Parallel()
	moriioModes(t, func(t *testing.T, mode fakevllm.Mode) {
		r := start(t, mode, 2, 2, nil)
		var n int64
		for _, stream := range []bool{true, false} {
			for range 4 {
				n += 3
				body := chatBody(stream, "")
				r.checkComplete(r.post("/v1/chat/completions", body, "X-Request-Id", "___prefill_addr_host:a,handshake:1,notify:2___decode_addr_"), true, body)
				r.entry()
				body = fmt.Sprintf(`{"model":"m","prompt":[1,2,3,9007199254740993,5],"max_tokens":9,"stream":%v,"x":18446744073709551615}`, stream)
				body = strings.Replace(body, "9007199254740993", "4", 1)
				r.checkComplete(r.post("/v1/completions", body), false, body)
				r.entry()
				// On this route, engines use the transfer id in the body, not the id in the header.
				body = agentBody(responsesPath, stream, "")
				r.checkAgentAnswer(r.post(responsesPath, body), responsesPath, body)
				r.entry()
			}
		}
		r.checkHandedOver(n)
	})
}

// A consumer in READ mode that gets no KV transfer answers with the wrong text (vLLM 0.32).
// Such a request fails instead, and the error says why.
func TestMoRIIORead_NeverDecodeOnly(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		path, body, reason string
		prefills           int
		fault              *fakevllm.Fault
	}{
		"no prefill":     {"/v1/chat/completions", chatBody(true, ""), "no_prefill", 0, nil},
		"n":              {"/v1/completions", `{"model":"m","prompt":"a","max_tokens":3,"n":2}`, "", 1, nil},
		"messages":       {messagesPath, agentBody(messagesPath, false, ""), "messages_need_length", 1, nil},
		"no KV transfer": {"/v1/chat/completions", chatBody(true, ""), "", 1, &fakevllm.Fault{Kind: fakevllm.FaultNoKV, Times: 9}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := start(t, fakevllm.MoRIIORead, tc.prefills, 1, nil)
			if tc.fault != nil {
				script(t, r.P[0], *tc.fault)
			}
			a := r.post(tc.path, tc.body)
			r.entry()
			assert.True(t, a.status >= 500 && strings.Contains(string(a.body), tc.reason), "%d: %s", a.status, a.body)
			assert.Equal(t, 0, len(posted(r.D[0])), "legs to decode")
		})
	}
}

// If decode fails every attempt, the client gets decode's error: no decode instance may compute the prompt.
func TestMoRIIODecodeFails(t *testing.T) {
	t.Parallel()
	moriioModes(t, func(t *testing.T, mode fakevllm.Mode) {
		for decodes := range 2 {
			r := start(t, mode, 2, 1+decodes, nil)
			for _, d := range r.D {
				script(t, d, fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: http.StatusInternalServerError})
			}
			a := r.post(chatPath, chatBody(true, ""))
			if e := r.entry(); a.status != http.StatusInternalServerError || e.Failure != leg.Status5xx || e.DecodeOnly == "" && mode != fakevllm.MoRIIORead {
				t.Errorf("%d decode instances: %d %s, entry %+v", 1+decodes, a.status, a.body, e)
			}
		}
	})
}

// Requests that one instance serves go to prefill, since decode cannot serve without it.
func TestMoRIIOReadOtherRoutes(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.MoRIIORead, 1, 1, nil)
	a := r.post("/tokenize", `{"model":"m","prompt":"a b"}`)
	r.entry()
	assert.True(t, a.status == http.StatusOK && len(posted(r.D[0])) == 0 && len(posted(r.P[0])) == 1,
		"%d, %d to decode, %d to prefill: %s", a.status, len(posted(r.D[0])), len(posted(r.P[0])), a.body)
}
