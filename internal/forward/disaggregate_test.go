package forward_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/forward/bypass"
	"github.com/pdmesh/pdmesh/internal/forward/flow"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/internal/sched/estimate"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// No request is decode-only before the estimates are known; after that, some are. Each of them has its reason
// and is counted once, in every flow.
func TestDisaggregateLearns(t *testing.T) {
	t.Parallel()
	for _, mode := range []fakevllm.Mode{fakevllm.Plain, fakevllm.NIXL, fakevllm.Mooncake, fakevllm.LMCache} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			r := start(t, mode, 1, 2, func(o *forward.Options) { o.Disaggregate = new(flow.Disaggregate) })
			reasons := map[string]int{}
			for range 64 {
				body := chatBody(true, "")
				a := r.post("/v1/chat/completions", body)
				r.checkComplete(a, true, body)
				why := r.entry().DecodeOnly
				got := a.header.Get("X-PD-Decode-Only")
				assert.Equal(t, why, got, "X-PD-Decode-Only is %q, the log has %q", got, why)
				reasons[why]++
			}
			r.rec.mu.Lock()
			defer r.rec.mu.Unlock()
			assert.True(t, reasons[bypass.Explore] != 0 && reasons[""] >= 4,
				"requests by reason: %v, decisions %v", reasons, r.rec.decided)
			pairs := 0
			for decision, n := range r.rec.decided {
				if strings.HasPrefix(decision, "false") {
					pairs += n
				}
			}
			assert.Equal(t, reasons[""], pairs, "through prefill, decisions %v", r.rec.decided)
		})
	}
}

// The choices of a request share the time of one stream, so its tokens are no measure of an engine's speed.
func TestSeveralChoices_NotMeasured(t *testing.T) {
	t.Parallel()
	e := new(estimate.Estimator)
	r := start(t, fakevllm.NIXL, 1, 1, func(o *forward.Options) { o.Estimator = e })
	learned := func(more string) float64 {
		t.Helper()
		body := sixtyBody(completionsPath, more)
		r.post(completionsPath, body).require(t, http.StatusOK)
		r.entry()
		return e.Rates("m", "").Output
	}
	before := new(estimate.Estimator).Rates("m", "").Output
	got := learned(`,"n":4`)
	assert.True(t, got == before, "an answer has %v tokens after one with four choices, %v before", got, before)
	got = learned("")
	assert.True(t, got != before, "a stream was not measured")
}

func TestDisaggregateNever(t *testing.T) {
	t.Parallel()
	never := func(o *forward.Options) { o.Disaggregate = &flow.Disaggregate{Never: true} }
	r := start(t, fakevllm.NIXL, 1, 1, never)
	if a := r.post("/v1/chat/completions", chatBody(false, "")); a.status != http.StatusOK || a.header.Get("X-PD-Decode-Only") != bypass.Never {
		t.Errorf("%d, decode-only: %q", a.status, a.header.Get("X-PD-Decode-Only"))
	}
	// A decode instance in READ mode would answer with the wrong text.
	r = start(t, fakevllm.MoRIIORead, 1, 1, never)
	if a := r.post("/v1/chat/completions", chatBody(false, "")); a.status != http.StatusOK || a.header.Get("X-PD-Decode-Only") != "" {
		t.Errorf("moriio_read: %d, decode-only: %q", a.status, a.header.Get("X-PD-Decode-Only"))
	}
}

// startPrefix starts a rig whose prefill instances are picked by the policy prefix.
func startPrefix(t *testing.T, mode fakevllm.Mode, d *flow.Disaggregate) *rig {
	t.Helper()
	return startTuned(t, mode, 1, 1, tuning{
		forward: func(o *forward.Options) { o.Disaggregate = d },
		sched:   prefixPolicy(t),
	})
}

// text returns a chat that is long enough to be remembered.
func text(stream bool) string {
	return strings.Replace(chatBody(stream, ""), "tell me", strings.Repeat("tell me ", 60), 1)
}

// The prompt of a decode-only request is not expected in prefill's cache, and no pick is
// counted for a leg that was not sent.
func TestDisaggregate_SkippedPrefillNotCounted(t *testing.T) {
	t.Parallel()
	for _, never := range []bool{true, false} {
		r := startPrefix(t, fakevllm.NIXL, &flow.Disaggregate{Never: never})
		for range 3 {
			body := text(true)
			r.checkComplete(r.post("/v1/chat/completions", body), true, body)
			r.entry()
		}
		picks := uint64(0)
		r.sched.Tally.Picks.Each(func(role instance.Role, _ string, n uint64) {
			if role == instance.Prefill {
				picks += n
			}
		})
		prompt := text(true)
		e := r.sched.Explain(sched.Request{Role: instance.Prefill, Model: model, Prompt: []byte(prompt[strings.Index(prompt, "[") : strings.Index(prompt, "]")+1])})
		if known := e.Assignment.Cached > 0; known == never || (picks > 0) == never {
			t.Errorf("never %t: %d of %d tokens are expected at prefill, %d picks", never, e.Assignment.Cached, e.Assignment.Tokens, picks)
		}
	}
}

// A decode instance with queued requests, or with a full KV cache, computes no prompt: the request goes
// through prefill. Requests that wait for their KV cache do not count.
func TestDisaggregate_BusyDecodeSkipped(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		said policy.Rank
		full bool
	}{
		"idle":             {policy.Rank{Capacity: 1 << 20}, false},
		"fetching":         {policy.Rank{Capacity: 1 << 20, Waiting: 3, Fetching: 3, Deferred: 3}, false},
		"waiting":          {policy.Rank{Capacity: 1 << 20, Waiting: 3, Deferred: 2}, true},
		"starved":          {policy.Rank{Capacity: 1 << 20, Waiting: 1, Deferred: 1, Starved: 1}, true},
		"prompts too long": {policy.Rank{Capacity: 10}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := startPrefix(t, fakevllm.NIXL, new(flow.Disaggregate))
			r.sched.Explain(sched.Request{Role: instance.Decode, Model: model}) // the first call makes the counters
			r.sched.Loads.SetEngine(instance.Key{Role: instance.Decode, Address: r.D[0].Address()}, &policy.Engine{Ranks: []policy.Rank{tc.said}, All: tc.said})
			full := func() bool {
				r.rec.mu.Lock()
				defer r.rec.mu.Unlock()
				return r.rec.decided["false decode_full"] > 0
			}
			// The proxy notices a full instance only when it explores decode-only, which is too expensive while
			// prefill happens to be slow.
			for n := 0; n < 32 || tc.full && n < 1000 && !full(); n++ {
				body := text(true)
				r.checkComplete(r.post("/v1/chat/completions", body), true, body)
				r.entry()
			}
			is := full()
			r.rec.mu.Lock()
			defer r.rec.mu.Unlock()
			assert.Equal(t, tc.full, is, "decided %v", r.rec.decided)
			assert.False(t, tc.full && r.rec.decided["true "+bypass.Explore] > 0,
				"explored a decode instance that is full: %v", r.rec.decided)
		})
	}
}
