package forward_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/forward/bypass"
	"github.com/pdmesh/pdmesh/internal/forward/explain"
	"github.com/pdmesh/pdmesh/internal/forward/flow"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// explain returns the proxy's plan for a chat.
func (r *rig) explain(body string) explain.Plan {
	r.t.Helper()
	return r.explainAt(chatPath, body)
}

// explainAt returns the proxy's plan for a request.
func (r *rig) explainAt(endpoint, body string) explain.Plan {
	r.t.Helper()
	w := httptest.NewRecorder()
	r.handler.Explain(w, httptest.NewRequestWithContext(r.t.Context(), http.MethodPost, "/route?endpoint="+endpoint, strings.NewReader(body)))
	var p explain.Plan
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Code != http.StatusOK {
		r.t.Fatalf("%d: %s", w.Code, w.Body)
	}
	return p
}

// A request goes where Explain says. Explain itself has no effect: no engine gets a request, and nothing is
// counted.
func TestExplain_MatchesRequest(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.NIXL, 3, 2, nil)
	for i := range 12 {
		body := chatBody(i%2 == 0, "")
		var p explain.Plan
		for range i % 4 {
			p = r.explain(body)
		}
		a := r.post("/v1/chat/completions", body, "X-PD-Trace", "1")
		r.checkComplete(a, true, body)
		e := r.entry()
		if i%4 == 0 {
			continue
		}
		if p.Way != explain.Pair || p.Prefill.Chosen != e.Prefill || p.Decode.Chosen != e.Decode || p.Revision != e.Revision {
			t.Errorf("explained %s %s to %s at %d, done %s to %s at %d", p.Way, p.Prefill.Chosen, p.Decode.Chosen, p.Revision, e.Prefill, e.Decode, e.Revision)
		}
		if len(p.Prefill.Candidates) != 3 || len(p.Decode.Candidates) != 2 || p.Tokens == 0 || p.Disaggregate != nil {
			t.Errorf("%+v", p)
		}
		assert.Equal(t, "0", a.header.Get("X-PD-Cached-Tokens"), "cached tokens")
		want := `^queue;dur=[0-9.]+, prefill;dur=[0-9.]+, handover;dur=[0-9.]+, first;dur=[0-9.]+$`
		if i%2 == 1 {
			want = `^queue;dur=[0-9.]+, prefill;dur=[0-9.]+, decode;dur=[0-9.]+$`
		}
		got := a.header.Get("X-PD-Timing")
		assert.True(t, regexp.MustCompile(want).MatchString(got), "timing %q", got)
	}
	if queried := legs(r.P) + legs(r.D); queried != 24 || len(r.rec.ended) != 0 {
		t.Errorf("engines got %d legs for 12 requests; %d more have ended", queried, len(r.rec.ended))
	}
}

// Explain reports the flow of every kind of request and, for decode-only, the reason of the answer.
func TestExplain_Flows(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		body        string
		disaggr     *flow.Disaggregate
		prefills    int
		way, reason string
	}{
		"pair":       {chatBody(false, ""), nil, 1, explain.Pair, ""},
		"n":          {chatBody(false, `,"n":2`), nil, 1, explain.DecodeOnly, bypass.N},
		"no prefill": {chatBody(false, ""), nil, 0, explain.DecodeOnly, bypass.NoPrefill},
		"never":      {chatBody(false, ""), &flow.Disaggregate{Never: true}, 1, explain.DecodeOnly, bypass.Never},
		"auto":       {chatBody(false, ""), new(flow.Disaggregate), 1, explain.Pair, ""},
		"model":      {strings.Replace(chatBody(false, ""), `"m"`, `"other"`, 1), nil, 1, explain.None, sched.ErrUnknownModel.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := start(t, fakevllm.NIXL, tc.prefills, 1, func(o *forward.Options) { o.Disaggregate = tc.disaggr })
			p := r.explain(tc.body)
			assert.True(t, p.Way == tc.way && p.Reason == tc.reason,
				"%s (%s), want %s (%s)", p.Way, p.Reason, tc.way, tc.reason)
			assert.Equal(t, tc.disaggr != nil, p.Disaggregate != nil, "decided %+v", p.Disaggregate)
			assert.False(t, p.Way != explain.None && p.Decode.Chosen != r.D[0].Address(), "decode %+v", p.Decode)
			r.post("/v1/chat/completions", tc.body)
			if e := r.entry(); p.Way == explain.DecodeOnly && e.DecodeOnly != p.Reason {
				t.Errorf("decode-only because of %q", e.DecodeOnly)
			}
		})
	}
}

// A request that continues a stored response goes to the instance that has it, even if that drains.
func TestExplainStoredResponse(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.NIXL, 1, 4, nil)
	for i := range 8 {
		id := r.stored("")
		holder := r.entry().Decode
		if i == 7 {
			r.members.change(func(in *instance.Instance) {
				if in.Address == holder {
					in.Intent = instance.Drain
				}
			})
		}
		body := agentBody(responsesPath, false, `,"previous_response_id":"`+id+`"`)
		p := r.explainAt(responsesPath, body)
		if p.Way != explain.DecodeOnly || p.Reason != bypass.StoredResponse || p.Decode.Chosen != holder || len(p.Decode.Candidates) != 4 || i < 7 && p.Tokens == 0 {
			t.Errorf("%s (%s) with decode %+v, want %s", p.Way, p.Reason, p.Decode, holder)
		}
		for _, c := range p.Decode.Candidates {
			assert.True(t, c.Chosen == (c.Address == holder) && (c.Out == "") == c.Chosen, "candidate %+v, want %s", c, holder)
		}
		a := r.post(responsesPath, body)
		assert.True(t, a.status == http.StatusOK && r.entry().Decode == holder, "%d %s", a.status, a.body)
	}
	id := openai.ResponseID(strings.Repeat("0", 32), "left:1")
	if p := r.explainAt(responsesPath, agentBody(responsesPath, false, `,"previous_response_id":"`+id+`"`)); p.Way != explain.None || p.Decode.Chosen != "" {
		t.Errorf("of an instance that has left: %+v", p)
	}
}

// Explain omits prefill instances whose notifications cannot be received or do not arrive, as requests do.
func TestExplainNotified(t *testing.T) {
	t.Parallel()
	var c unheardNotifications
	w := startNotified(t, 2, 1, 1, func(o *forward.Options) {
		c.Notifications = o.Notifications
		o.Notifications, o.Notified, o.RetryRatio = &c, 50*time.Millisecond, -1
	})
	first, last := min(w.P[0].Address, w.P[1].Address), max(w.P[0].Address, w.P[1].Address)
	none, all := "none", ""
	body := chatBody(true, "")
	check := func(way, reason, prefill string) {
		t.Helper()
		p := w.rig.explain(body)
		assert.True(t, p.Way == way && p.Reason == reason && p.Prefill.Chosen == prefill,
			"%s (%s) with prefill %q, want %s (%s) with %q", p.Way, p.Reason, p.Prefill.Chosen, way, reason, prefill)
	}
	c.unheard.Store(&none)
	check(explain.Pair, "", first)
	c.unheard.Store(&first)
	check(explain.Pair, "", last)
	c.unheard.Store(&all)
	check(explain.DecodeOnly, bypass.NotHeard, "")
	c.unheard.Store(&none)
	for len(w.rig.handler.Unnotified()) < 2 { // their notifications do not arrive
		got := w.begin(t.Context(), body)
		l := await(t, "a leg", w.legs)
		for ; l.role == instance.Prefill; l = await(t, "a leg", w.legs) {
			l.reply(ok)
		}
		l.reply(streams)
		w.checkServed(got)
	}
	check(explain.DecodeOnly, bypass.NotNotified, "")
	got := w.begin(t.Context(), body)
	w.leg(instance.Decode).reply(streams)
	e := w.checkServed(got)
	assert.Equal(t, bypass.NotNotified, e.DecodeOnly, "%+v", e)
}

// Explain uses the estimates of --disaggregate auto and does not change them: the order of decisions is the
// same as without Explain.
func TestExplainDecisions(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.NIXL, 1, 1, func(o *forward.Options) { o.Disaggregate = new(flow.Disaggregate) })
	explored := 0
	for i := range 24 {
		body := chatBody(true, "")
		for range 5 {
			if p := r.explain(body); p.Disaggregate.Decision == explain.Pair && p.Way != explain.Pair {
				t.Fatalf("%+v", p)
			}
		}
		r.checkComplete(r.post("/v1/chat/completions", body), true, body)
		if r.entry().DecodeOnly == bypass.Explore {
			explored++
		}
		if p := r.explain(body); i > 8 && p.Disaggregate.Pair <= 0 {
			t.Errorf("after %d requests: %+v", i, p.Disaggregate)
		}
	}
	// One in eight requests explores; if Explain also counted, another request would explore.
	assert.LessOrEqual(t, explored, 3, "%d of 24 requests are explored", explored)
	r.rec.mu.Lock()
	defer r.rec.mu.Unlock()
	total := 0
	for _, n := range r.rec.decided {
		total += n
	}
	assert.Equal(t, 24, total, "24 requests, decided %v", r.rec.decided)
}

func TestExplainRefuses(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.NIXL, 1, 1, func(o *forward.Options) { o.MaxBody = 2000 })
	for _, tc := range []struct {
		endpoint, body string
		code           int
		says           string
	}{
		{"/v1/embeddings", `{}`, http.StatusBadRequest, "/v1/chat/completions"},
		{"/v1/completions", `{"prompt":`, http.StatusBadRequest, `"error"`},
		{"/v1/completions", `[]`, http.StatusBadRequest, `"error"`},
		{"", fmt.Sprintf(`{"messages":%q}`, strings.Repeat("x", 3000)), http.StatusRequestEntityTooLarge, "max-body-bytes"},
	} {
		w := httptest.NewRecorder()
		r.handler.Explain(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/route?endpoint="+tc.endpoint, strings.NewReader(tc.body)))
		assert.True(t, w.Code == tc.code && strings.Contains(w.Body.String(), tc.says),
			"%s %s: %d %s", tc.endpoint, tc.body, w.Code, w.Body)
	}
	w := httptest.NewRecorder()
	r.handler.Explain(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/route", iotest.ErrReader(os.ErrDeadlineExceeded)))
	if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), "the request body could not be read") {
		t.Errorf("a body that does not arrive: %d %s", w.Code, w.Body)
	}
	assert.EqualValues(t, 0, r.sched.InFlight(instance.Key{Role: instance.Prefill, Address: r.P[0].Address()}), "in flight")
}
