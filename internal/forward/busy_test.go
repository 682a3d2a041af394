package forward_test

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/engine/vllm"
	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/forward/bypass"
	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/internal/forward/relay"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// busy sets all limits of a leg far below the pauses of the engines. All engines make progress, if
// observable.
func busy(observable bool) func(*forward.Options) {
	return func(o *forward.Options) {
		const short = 100 * time.Millisecond
		o.Prefill, o.FirstByte, o.Idle, o.NonStream, o.Busy = short, short, short, short, waitLimit
		// Ahead of now: a slow test machine must not look like a stalled engine.
		o.Progress = func(instance.Key) (last, ran time.Time, _ bool) {
			last = time.Now().Add(waitLimit)
			return last, last, observable
		}
	}
}

// A request that exceeds its limits, in the engine's queue or in a pause of its stream, is served once while
// the engine makes progress: by one prefill and one decode leg.
func TestBusyEngine_ProgressExtendsLimits(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		role  instance.Role
		fault fakevllm.Fault
	}{
		{"prefill queue", instance.Prefill, fakevllm.Fault{TTFT: 700 * time.Millisecond}},
		{"decode queue", instance.Decode, fakevllm.Fault{TTFT: 700 * time.Millisecond}},
		{"pauses of the stream", instance.Decode, fakevllm.Fault{ITL: 250 * time.Millisecond}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			eachSequential(t, func(t *testing.T, mode fakevllm.Mode, q scenario) {
				r := startTuned(t, mode, 1, 1, tuning{forward: busy(true), sched: noProbes})
				engine := r.engines(c.role)[0]
				slow := c.fault
				slow.Kind = fakevllm.FaultSlow
				script(t, engine, slow)
				r.checkServed(q)
				e := r.entry()
				assert.True(t, e.Outcome == relay.OutcomeOK && e.Failed == 0 && e.DecodeOnly == "", "entry %+v", e)
				p, d := legs(r.P), legs(r.D)
				assert.True(t, p == 1 && d == 1, "%d prefill legs, %d decode legs", p, d)
				r.checkEngines()
			})
		})
	}
}

// A leg that hangs on an idle engine reaches its limit and is retried, even if engines answer trial requests
// of this proxy and others.
func TestTrialsExtendNoLimit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		role   instance.Role
		stream bool
		class  leg.Class
	}{
		{"prefill", instance.Prefill, true, leg.PrefillTimeout},
		{"first byte", instance.Decode, true, leg.FirstByteTimeout},
		{"whole answer", instance.Decode, false, leg.FirstByteTimeout},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var r *rig
			r = startTuned(t, fakevllm.NIXL, 2, 2, tuning{sched: noProbes, forward: func(o *forward.Options) {
				const limit = 5 * time.Second // the retry must not take as long
				o.Prefill, o.FirstByte, o.NonStream, o.Busy = limit, limit, limit, time.Hour
				o.Progress = func(k instance.Key) (last, ran time.Time, observable bool) { return r.tracker.Progress(k) }
			}})
			client := vllm.New("")
			read := func(s *fakevllm.Server) {
				ranks, err := client.Load(t.Context(), s.URL())
				require.NoError(t, err)
				r.tracker.Observe(key(c.role, s), ranks)
			}
			engines := r.engines(c.role)
			script(t, engines[0], fakevllm.Fault{Kind: fakevllm.FaultHang, Times: 1})
			for _, s := range engines {
				read(s)
			}
			q, done := scenario{chatPath, c.stream}, make(chan answer, 1)
			go func() { done <- r.postScenario(q) }()
			eventually(t, "the leg hangs", func() bool { return legs(engines[:1]) == 1 })
			eventually(t, "the request is answered", func() bool {
				for _, s := range engines {
					require.NoError(t, client.Trial(t.Context(), s.URL(), model, "pd-trial-1", -1))
					read(s)
				}
				return len(done) == 1
			})
			r.checkWhole(q, <-done)
			assert.Equal(t, string(c.role)+"/"+string(c.class), r.rec.retried(), "retried")
		})
	}
}

// If progress cannot be observed, the limits apply, and the error names the limit that ended the request and
// its setting.
func TestLimitErrorsNameTheSetting(t *testing.T) {
	t.Parallel()
	const short = 100 * time.Millisecond
	for _, c := range []struct {
		name   string
		role   instance.Role
		fault  fakevllm.Fault
		stream bool
		tune   func(*forward.Options)
		class  leg.Class
		says   string
	}{
		{"prefill", instance.Prefill, fakevllm.Fault{}, true, func(o *forward.Options) { o.Prefill = short },
			leg.PrefillTimeout, "the prefill instance did not answer in time: no prefill answer for 0.1 s (--prefill-timeout)"},
		{"first byte", instance.Decode, fakevllm.Fault{}, true, func(o *forward.Options) { o.FirstByte = short },
			leg.FirstByteTimeout, "the decode instance did not answer in time: no byte of an answer for 0.1 s (--decode-first-byte-timeout)"},
		{"whole answer", instance.Decode, fakevllm.Fault{}, false, func(o *forward.Options) { o.NonStream = short },
			leg.FirstByteTimeout, "no byte of an answer for 0.1 s (--non-stream-timeout)"},
		{"idle", instance.Decode, fakevllm.Fault{At: fakevllm.AfterHeaders}, true, func(o *forward.Options) { o.Idle = short },
			leg.IdleTimeout, "no further byte of the answer for 0.1 s (--idle-timeout)"},
		{"busy", instance.Decode, fakevllm.Fault{At: fakevllm.AfterHeaders}, true, func(o *forward.Options) {
			busy(true)(o)
			o.Prefill, o.FirstByte, o.Busy = waitLimit, waitLimit, 3*short
		}, leg.IdleTimeout, "no further byte of the answer for 0.3 s (--busy-timeout)"},
		{"lease", instance.Decode, fakevllm.Fault{At: fakevllm.AfterHeaders}, true, func(o *forward.Options) {
			o.Progress = func(instance.Key) (last, ran time.Time, _ bool) { return last, ran, true }
			o.KVBudget = 2 * short
		}, leg.TransferExpired, "no content, and no proof that the KV cache was read, for 0.2 s (--kv-lease-budget)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := startTuned(t, fakevllm.NIXL, 1, 1, tuning{sched: noProbes, forward: func(o *forward.Options) {
				o.Progress = func(instance.Key) (last, ran time.Time, observable bool) { return last, ran, observable }
				c.tune(o)
				o.Fallback, o.RetryRatio, o.MaxAttempts = false, -1, 2
			}})
			c.fault.Kind = fakevllm.FaultHang
			engine := r.engines(c.role)[0]
			script(t, engine, c.fault)
			q := scenario{chatPath, c.stream}
			r.checkRefused(q, r.postScenario(q), http.StatusGatewayTimeout, c.says)
			e := r.entry()
			assert.Equal(t, c.class, e.Failure, "entry %+v", e)
		})
	}
}

// A stream that stalls after the commit ends with an error event that names the limit.
func TestStalledStreamNamesTheLimit(t *testing.T) {
	t.Parallel()
	eachAPI(t, streamed(), func(t *testing.T, q scenario) {
		r := start(t, fakevllm.NIXL, 1, 1, func(o *forward.Options) { o.Idle = 2 * time.Second })
		script(t, r.D[0], fakevllm.Fault{Kind: fakevllm.FaultHang, At: fakevllm.AfterTokens, Tokens: 2})
		a := r.postScenario(q)
		r.checkBroken(q, a)
		assert.Contains(t, string(a.body), "no further byte of the answer for 2 s (--idle-timeout)")
	})
}

// If the KV lease has ended three times before decode read the KV cache, the request becomes decode-only:
// decode's queue is longer than the lease.
func TestQueueLongerThanTheLease(t *testing.T) {
	t.Parallel()
	eachAPI(t, streamed(), func(t *testing.T, q scenario) {
		r := start(t, fakevllm.NIXL, 1, 1, func(o *forward.Options) {
			o.KVBudget = 2 * time.Second // the leg must reach its engine within it
			o.Progress = func(instance.Key) (last, ran time.Time, _ bool) { return last, ran, true }
		})
		script(t, r.D[0], fakevllm.Fault{Kind: fakevllm.FaultHang, At: fakevllm.AfterHeaders, Times: 3})
		r.checkServed(q)
		if e := r.entry(); e.DecodeOnly != "lease_ended" || e.Failed != 3 || r.rec.retried() != strings.TrimSpace(strings.Repeat("decode/handover_expired ", 3)) {
			t.Errorf("entry %+v, retried %s", e, r.rec.retried())
		}
		p, d := legs(r.P), legs(r.D)
		assert.True(t, p == 3 && d == 4, "%d prefill legs, %d decode legs", p, d)
	})
}

// A request that has become decode-only after the KV lease has ended does not count at prefill any more.
func TestQueueLongerThanTheLease_FreesPrefill(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.NIXL, 1, 1, func(o *forward.Options) {
		o.KVBudget = 2 * time.Second // the leg must reach its engine within it
		o.Progress = func(instance.Key) (last, ran time.Time, _ bool) { return last, ran, true }
	})
	r.script(r.D[0], fakevllm.Fault{Kind: fakevllm.FaultHang, At: fakevllm.AfterHeaders, Times: 3})
	r.script(r.D[0], fakevllm.Fault{Kind: fakevllm.FaultHang, At: fakevllm.AfterTokens, Tokens: 2, Times: 1})
	resp, in := r.openStream(scenario{chatPath, true})
	readUntil(t, in, `"content":"`)
	assert.Equal(t, bypass.LeaseEnded, resp.Header.Get("X-PD-Decode-Only"), "decode-only")
	assert.EqualValues(t, 0, r.sched.InFlight(key(instance.Prefill, r.P[0])), "legs in flight at prefill")
	_ = resp.Body.Close()
	r.checkEngines()
}

// A leg that is stuck in an engine which serves others is sent to another instance, long before any limit,
// once 20 later legs have overtaken it.
func TestOvertakenLeg_Retried(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		role instance.Role
		at   fakevllm.Stage
	}{
		{"prefill", instance.Prefill, fakevllm.AfterRead},
		{"decode", instance.Decode, fakevllm.AfterHeaders},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := start(t, fakevllm.NIXL, 2, 2, func(o *forward.Options) {
				o.Progress = func(instance.Key) (last, ran time.Time, _ bool) { return time.Now(), time.Now(), true }
			})
			engines := r.engines(c.role)
			for _, s := range engines { // the first leg of the role, on whichever engine
				script(t, s, fakevllm.Fault{Kind: fakevllm.FaultHang, At: c.at, Times: 1})
			}
			q := scenario{chatPath, true}
			stuck := make(chan answer, 2)
			for range 2 {
				go func() { stuck <- r.postScenario(q) }()
			}
			eventually(t, "both are stuck", func() bool { return legs(engines) == 2 })
			var all sync.WaitGroup
			for range 4 {
				all.Go(func() {
					for range 24 {
						r.checkWhole(q, r.postScenario(q))
					}
				})
			}
			all.Wait()
			for range 2 {
				r.checkWhole(q, <-stuck)
			}
			if got := r.rec.retried(); !strings.Contains(got, string(c.role)+"/overtaken") || strings.Contains(got, "timeout") {
				t.Errorf("retried %s", got)
			}
			r.noneTroubled()
			r.checkEngines()
		})
	}
}

// Errors also name the limits that are not of a leg: those of a connection, of the request's body, and of
// retries.
func TestError_NamesOtherLimits(t *testing.T) {
	t.Parallel()
	q := scenario{chatPath, true}
	t.Run("connection", func(t *testing.T) {
		t.Parallel()
		r := start(t, fakevllm.NIXL, 1, 1, func(o *forward.Options) {
			c := &lateConnect{Client: o.Upstream}
			c.left.Store(100)
			o.Upstream, o.Connect = c, time.Second
		})
		r.checkRefused(q, r.postScenario(q), http.StatusServiceUnavailable, "no connection for 1 s (--connect-timeout)")
	})
	const chunked = "Transfer-Encoding: chunked\r\n\r\n"
	for name, sent := range map[string]string{
		"body": "Content-Length: 100\r\n\r\n{", "chunk": chunked + "5\r\n{", "trailer": chunked + "2\r\n{}\r\n0\r\nX-Sum: 1", "end": chunked + "2\r\n{}\r\n0\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := start(t, fakevllm.NIXL, 1, 1, func(o *forward.Options) { o.BodyTimeout = 100 * time.Millisecond })
			_, in := r.sendRaw("POST " + chatPath + " HTTP/1.1\r\nHost: p\r\nContent-Type: application/json\r\n" + sent)
			resp, err := http.ReadResponse(in, nil)
			require.NoError(t, err)
			defer func() { _ = resp.Body.Close() }()
			r.checkRefused(q, readRest(resp, resp.Body), http.StatusBadRequest, "it did not arrive within 0.1 s (a fixed limit)")
		})
	}
	t.Run("retries", func(t *testing.T) {
		t.Parallel()
		r := start(t, fakevllm.NIXL, 1, 2, func(o *forward.Options) { o.RetryRatio, o.RetryBurst = 1e-9, 1 })
		for _, s := range r.D {
			script(t, s, fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: 500})
		}
		eventually(t, "the budget is spent", func() bool {
			return strings.Contains(string(r.postScenario(q).body), "too many requests are being retried at the moment (--retry-budget)")
		})
	})
}
