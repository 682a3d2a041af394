package forward_test

import (
	"bytes"
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// These tests are what users of other proxies and routers report, each by its symptom.

func TestComplaintDecodeWaitsAfterPrefillFailed(t *testing.T) {
	t.Parallel()
	eachAPI(t, both(), func(t *testing.T, q scenario) {
		r := start(t, fakevllm.NIXL, 2, 1, func(o *forward.Options) { o.Fallback = false })
		for _, p := range r.P {
			script(t, p, fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: 500})
		}
		r.checkRefused(q, r.postScenario(q), http.StatusInternalServerError, "")
		if n := legs(r.D); n != 0 {
			t.Fatalf("%d decode legs were sent for a prefill that failed", n)
		}
		r.checkEngines()
	})
}

func TestComplaintDisconnectKeepsPrefillBusy(t *testing.T) {
	t.Parallel()
	eachAPI(t, both(), func(t *testing.T, q scenario) {
		r := start(t, fakevllm.NIXL, 1, 1, nil)
		script(t, r.P[0], fakevllm.Fault{Kind: fakevllm.FaultHang, Times: 1})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan answer, 1)
		go func() { done <- r.postCtx(ctx, q.path, q.body("")) }()
		eventually(t, "the prefill runs", func() bool { return r.P[0].Counters().Faults == 1 })
		cancel()
		<-done
		eventually(t, "the engine aborts it", func() bool { return aborted(r.P[0].Counters()) == 1 && r.P[0].Counters().Running == 0 })
		if n := legs(r.D); n != 0 {
			t.Fatalf("%d decode legs for a client that left", n)
		}
	})
}

func TestComplaintSilent200WithEmptyBody(t *testing.T) {
	t.Parallel()
	eachAPI(t, both(), func(t *testing.T, q scenario) {
		for _, kind := range []fakevllm.Kind{fakevllm.FaultClose, fakevllm.FaultReset, fakevllm.FaultErrorEvent} {
			r := start(t, fakevllm.NIXL, 1, 2, nil)
			for _, d := range r.D {
				script(t, d, fakevllm.Fault{Kind: kind, At: fakevllm.AfterRole})
			}
			a := r.postScenario(q)
			if a.status < 500 || !bytes.Contains(a.body, []byte(`"error"`)) {
				t.Errorf("%s on every decode instance: status %d, body %q", kind, a.status, a.body)
			}
		}
	})
}

func TestComplaint4xxTurned5xxAndRetried(t *testing.T) {
	t.Parallel()
	eachAPI(t, both(), func(t *testing.T, q scenario) {
		r := start(t, fakevllm.NIXL, 2, 2, nil)
		for _, d := range r.D {
			script(t, d, fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: 400, Body: `{"error":{"message":"prompt too long","code":400}}`})
		}
		a := r.postScenario(q)
		if a.status != http.StatusBadRequest || !strings.Contains(string(a.body), "prompt too long") || legs(r.D) != 1 {
			t.Fatalf("%d after %d decode legs: %s", a.status, legs(r.D), a.body)
		}
	})
}

func TestComplaintTooLongPromptEjectsHealthyInstance(t *testing.T) {
	t.Parallel()
	eachAPI(t, both(), func(t *testing.T, q scenario) {
		r := start(t, fakevllm.Plain, 1, 2, nil)
		for _, d := range r.D {
			// As vLLM does for some prompts that do not fit.
			script(t, d, fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: 500, Times: 6})
		}
		for range 3 {
			r.postScenario(q)
		}
		for _, d := range r.D {
			if !r.tracker.Available(key(instance.Decode, d)) {
				t.Errorf("%s was ejected for requests that fail everywhere", d.Address())
			}
		}
	})
}

func TestComplaintFallbackMovesLoadSilently(t *testing.T) {
	t.Parallel()
	eachAPI(t, both(), func(t *testing.T, q scenario) {
		r := start(t, fakevllm.NIXL, 1, 1, nil)
		script(t, r.P[0], fakevllm.Fault{Kind: fakevllm.FaultReset})
		r.checkServed(q)
		if e := r.entry(); e.DecodeOnly != "prefill_failed" || e.Attempts != 2 {
			t.Fatalf("the fallback is not reported, or attempts are not bounded: %+v", e)
		}
	})
}

func TestComplaintMultiPromptCrashesDecode(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.NIXL, 1, 1, nil)
	a := r.post("/v1/completions", `{"model":"m","prompt":["a","b","c"],"max_tokens":3}`)
	if a.status != http.StatusOK || bytes.Count(a.body, []byte(`"index"`)) != 3 {
		t.Fatalf("%d: %s", a.status, a.body)
	}
	r.checkEngines()
}

// The prefill instance restarts at its address while its KV transfer waits for a
// second decode instance: the KV transfer of the old incarnation must not be used.
func TestComplaintRestartAtTheSameAddress(t *testing.T) {
	t.Parallel()
	eachAPI(t, both(), func(t *testing.T, q scenario) {
		r := start(t, fakevllm.NIXL, 1, 2, nil)
		script(t, r.D[0], fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: 503, Times: 1, At: fakevllm.BeforeRead})
		r.rec.onRetry = func() {
			r.P[0].Kill()
			if err := r.P[0].Restart(context.WithoutCancel(t.Context())); err != nil {
				t.Error(err)
			}
			var next []*instance.Instance
			for _, old := range r.members.Snapshot().All() {
				c := *old
				if c.Role == instance.Prefill {
					c.Record.ID += "-next"
				}
				next = append(next, &c)
			}
			r.members.set(next...)
		}
		r.checkServed(q)
		c := r.D[1].Counters()
		if c.TransfersRefused != 0 || c.TransfersLoaded != 1 || c.LocalPrefills != 0 {
			t.Fatalf("the second decode instance saw %+v", c)
		}
		if n := legs(r.P); n != 2 {
			t.Fatalf("%d prefills, want one in each incarnation", n)
		}
	})
}

func TestComplaintCachedTokensEqualPromptTokens(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.NIXL, 1, 1, nil)
	a := r.post("/v1/chat/completions", chatBody(true, `,"stream_options":{"include_usage":true}`))
	if a.status != http.StatusOK || !bytes.Contains(a.body, []byte(`"cached_tokens":0`)) {
		t.Fatalf("%d: %s", a.status, a.body)
	}
}
