package forward_test

import (
	"cmp"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/forward/bypass"
	"github.com/pdmesh/pdmesh/internal/forward/flow"
	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/internal/forward/relay"
	"github.com/pdmesh/pdmesh/internal/health"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

func script(t *testing.T, s *fakevllm.Server, f fakevllm.Fault) {
	t.Helper()
	require.NoError(t, s.Script(f))
}

// sequentialModes returns the modes of engines whose legs run one after the other.
func sequentialModes() []fakevllm.Mode {
	return []fakevllm.Mode{fakevllm.Plain, fakevllm.NIXL, fakevllm.NIXLPush, fakevllm.Ascend, fakevllm.P2P, fakevllm.LMCache}
}

// Whatever one decode instance does before the answer is committed, the client gets one
// complete answer. A KV transfer that the failed instance may have used needs a new prefill.
func TestDecodeFailureBeforeCommit(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		fault fakevllm.Fault
		retry string
	}{
		{name: "500", fault: fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: 500, Times: 1}, retry: "decode/status_5xx"},
		{name: "503", fault: fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: 503, Times: 1, At: fakevllm.BeforeRead}, retry: "decode/status_503"},
		{name: "429", fault: fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: 429, Times: 1, At: fakevllm.BeforeRead}, retry: "decode/busy"},
		{name: "saturated", fault: fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: 503, Body: saturated, Times: 1}, retry: "decode/busy"},
		{name: "reset after the request", fault: fakevllm.Fault{Kind: fakevllm.FaultReset, Times: 1}, retry: "decode/lost"},
		{name: "closed without an answer", fault: fakevllm.Fault{Kind: fakevllm.FaultClose, Times: 1}, retry: "decode/lost"},
		{name: "reset after the header", fault: fakevllm.Fault{Kind: fakevllm.FaultReset, Times: 1, At: fakevllm.AfterHeaders}, retry: "decode/broke_off"},
		{name: "reset after the role chunk", fault: fakevllm.Fault{Kind: fakevllm.FaultReset, Times: 1, At: fakevllm.AfterRole}, retry: "decode/broke_off"},
		{name: "cut after the role chunk", fault: fakevllm.Fault{Kind: fakevllm.FaultClose, Times: 1, At: fakevllm.AfterRole}},
		{name: "error event after the role chunk", fault: fakevllm.Fault{Kind: fakevllm.FaultErrorEvent, Times: 1}},
		{name: "an end by abort", fault: fakevllm.Fault{Kind: fakevllm.FaultAbort, Times: 1}, retry: "decode/aborted"},
		{name: "no HTTP at all", fault: fakevllm.Fault{Kind: fakevllm.FaultGarbage, Times: 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			over := eachSequential
			if tc.fault.Kind == fakevllm.FaultAbort {
				over = eachSequentialChat
			}
			over(t, func(t *testing.T, mode fakevllm.Mode, q scenario) {
				r := start(t, mode, 2, 2, nil)
				script(t, r.D[0], tc.fault)
				r.checkServed(q)
				e := r.entry()
				require.True(t, e.Outcome == relay.OutcomeOK && e.Failed == 1, "entry %+v", e)
				assert.False(t, tc.retry != "" && r.rec.retried() != tc.retry, "retried %q, want %q", r.rec.retried(), tc.retry)
				want := 2
				if mode == fakevllm.Plain {
					want = 1 // a KV pool may be read again
				}
				if n, spent := legs(r.P), len(r.rec.spent); n != int64(want) || spent != want-1 {
					t.Errorf("%d prefills, want %d; %d KV transfers are called spent", n, want, spent)
				}
				n := r.D[1].Counters().LocalPrefills
				assert.True(t, n == 0, "the second decode computed %d prompts itself", n)
				r.checkEngines()
			})
		})
	}
}

func TestDecodeRefusesConnections(t *testing.T) {
	t.Parallel()
	eachSequential(t, func(t *testing.T, mode fakevllm.Mode, q scenario) {
		r := start(t, mode, 1, 2, nil)
		r.D[0].Kill()
		for range 4 {
			r.checkServed(q)
		}
		most := int64(4)
		if mode == fakevllm.LMCache {
			most = 5 // prefill sends to the dead instance until something else notices it
		}
		if n := legs(r.P); n < 4 || n > most {
			t.Errorf("%d prefills for 4 requests, want at most %d: the same KV is good for the other instance, unless it was sent to the first", n, most)
		}
		// Only the first request may have tried the dead instance. The probe of a silent leg may notice the
		// failure before the leg does.
		if got := r.rec.retried(); got != "decode/gone" && (got != "decode/not_connected" || mode == fakevllm.LMCache) {
			t.Errorf("retried %q", got)
		}
		require.NoError(t, r.D[0].Restart(t.Context()))
		k := instanceAt("decode", r.D[0].Address(), mode).Key
		eventually(t, "the instance that answers again is readmitted", func() bool { return r.tracker.Available(k) })
		r.checkEngines()
	})
}

func TestNoPrefillLeft(t *testing.T) {
	t.Parallel()
	eachSequential(t, func(t *testing.T, mode fakevllm.Mode, q scenario) {
		for _, fallback := range []bool{true, false} {
			r := start(t, mode, 1, 1, func(o *forward.Options) { o.Fallback = fallback })
			r.P[0].Kill()
			a := r.postScenario(q)
			e := r.entry()
			if fallback {
				r.checkWhole(q, a)
				require.Equal(t, "prefill_failed", e.DecodeOnly, "entry %+v", e)
			} else {
				r.checkRefused(q, a, http.StatusServiceUnavailable, "no prefill instance")
				assert.EqualValues(t, 0, legs(r.D), "decode legs without a prefill")
			}
			r.checkEngines()
		}
	})
}

func TestNoInstance(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		p, d int
		want string
	}{{"nothing", 0, 0, "no decode instance is available"}, {"no decode", 1, 0, "no decode instance is available"}, {"nothing read", 0, 0, "has not read the list of instances"}} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			eachAPI(t, both(), func(t *testing.T, q scenario) {
				r := start(t, fakevllm.NIXL, tc.p, tc.d, nil)
				if tc.name == "nothing read" {
					r.members.p.Swap(instance.NewSnapshot(0, nil)).Supersede()
				}
				a := r.postScenario(q)
				r.checkRefused(q, a, http.StatusServiceUnavailable, `"type":"ServiceUnavailableError"`)
				if a.header.Get("Retry-After") == "" || !strings.Contains(string(a.body), tc.want) || a.header.Get("X-PD-Decode-Only") != "" {
					t.Fatalf("%d %v: %s", a.status, a.header, a.body)
				}
				e := r.entry()
				require.True(t, e.Outcome == relay.OutcomeUnavailable && e.DecodeOnly == "", "entry %+v", e)
			})
		})
	}
}

// An engine's refusal of a client's mistake goes to the client as it is, after one leg of
// its role.
func TestClientErrorsPass(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		status int
		role   instance.Role
	}{{400, instance.Prefill}, {400, instance.Decode}, {413, instance.Prefill}, {422, instance.Prefill}} {
		t.Run(fmt.Sprintf("%d %s", tc.status, tc.role), func(t *testing.T) {
			t.Parallel()
			eachAPI(t, both(), func(t *testing.T, q scenario) {
				r := start(t, fakevllm.NIXL, 2, 2, nil)
				list := r.engines(tc.role)
				for _, s := range list {
					script(t, s, fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: tc.status, Body: `{"error":{"message":"yours"}}`})
				}
				a := r.postScenario(q)
				require.True(t, a.status == tc.status && string(a.body) == `{"error":{"message":"yours"}}`,
					"%d: %s", a.status, a.body)
				n := legs(list)
				require.True(t, n == 1 && legs(r.P) == 1, "%d legs for a request that no engine takes", n)
				e := r.entry()
				require.Equal(t, relay.OutcomeClientError, e.Outcome, "entry %+v", e)
			})
		})
	}
}

// saturated is the body of vLLM's 503 for a request above --max-num-queued-reqs.
const saturated = `{"error":{"message":"The engine is currently busy and cannot accept new requests.","type":"Service Unavailable","param":null,"code":503}}`

// A saturated instance has not failed: others serve the requests that it refuses, and it gets no strike. If
// all refuse, the client gets their answer, with Retry-After.
func TestSaturation_NotFailure(t *testing.T) {
	t.Parallel()
	for _, fault := range []fakevllm.Fault{
		{Kind: fakevllm.FaultStatus, Status: 503, Body: saturated},
		{Kind: fakevllm.FaultStatus, Status: 429, Header: map[string]string{"Retry-After": "7"}},
		{Kind: fakevllm.FaultErrorEvent, Status: 429},
	} {
		for _, role := range instance.Roles() {
			if role == instance.Prefill && fault.Kind == fakevllm.FaultErrorEvent {
				continue // a prefill leg is not streamed
			}
			t.Run(fmt.Sprintf("%s %d %s", fault.Kind, fault.Status, role), func(t *testing.T) {
				t.Parallel()
				r := start(t, fakevllm.NIXL, 2, 2, nil)
				list := r.engines(role)
				script(t, list[0], fault)
				body := chatBody(true, "")
				for range 20 { // far more than the strikes that eject
					r.checkComplete(r.post("/v1/chat/completions", body), true, body)
				}
				assert.True(t, r.rec.retried() != "" && r.tracker.Available(key(role, list[0])),
					"retried %q, available %t", r.rec.retried(), r.tracker.Available(key(role, list[0])))
				script(t, list[1], fault)
				a := r.post("/v1/chat/completions", body)
				if a.status != fault.Status || fault.Body != "" && string(a.body) != fault.Body || a.header.Get("Retry-After") != cmp.Or(fault.Header["Retry-After"], "1") {
					t.Errorf("%d %v: %s", a.status, a.header, a.body)
				}
				e := r.entry()
				assert.Equal(t, "", e.DecodeOnly, "saturation was passed on to decode: %+v", e)
			})
		}
	}
}

// An error event with a status of the 4xx class is the client's error, not a 200.
func TestErrorEvent_ClientError(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.Plain, 1, 2, nil)
	script(t, r.D[0], fakevllm.Fault{Kind: fakevllm.FaultErrorEvent, Status: 400})
	a := r.post("/v1/chat/completions", chatBody(true, ""))
	require.True(t, a.status == http.StatusBadRequest && strings.Contains(a.header.Get("Content-Type"), "json"),
		"%d %v: %s", a.status, a.header, a.body)
}

// After the commit nothing can be hidden: the client gets an error event and a broken connection, never a
// clean end.
func TestLossAfterCommit(t *testing.T) {
	t.Parallel()
	for _, kind := range []fakevllm.Kind{fakevllm.FaultReset, fakevllm.FaultClose, fakevllm.FaultErrorEvent, fakevllm.FaultDie} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			eachAPI(t, streamed(), func(t *testing.T, q scenario) {
				r := start(t, fakevllm.NIXL, 1, 2, nil)
				fault := fakevllm.Fault{Kind: kind, Times: 1, At: fakevllm.AfterTokens, Tokens: 3}
				if kind == fakevllm.FaultDie {
					fault.Kind = fakevllm.FaultHang // killed below, once the answer is committed
				}
				script(t, r.D[0], fault)
				resp, stream := r.openStream(q)
				if kind == fakevllm.FaultDie {
					r.D[0].Kill()
				}
				r.checkBroken(q, readRest(resp, stream))
				if e := r.entry(); e.Outcome != relay.OutcomeBroken || e.Failed != 1 || !slices.Equal(r.rec.failed, []string{"decode/" + string(e.Failure)}) {
					t.Fatalf("failed %q, entry %+v", r.rec.failed, e)
				}
				require.EqualValues(t, 0, r.D[1].Counters().Requests, "a committed answer was begun again")
				r.checkEngines()
			})
		})
	}
}

// A proxy that cuts its requests answers uncommitted ones with 503 and ends a committed stream with an error
// event. No instance is blamed.
func TestProxyCutsRequests(t *testing.T) {
	t.Parallel()
	during := fakevllm.Fault{Kind: fakevllm.FaultHang, Times: 1}
	for _, tc := range []struct {
		name      string
		role      instance.Role
		fault     fakevllm.Fault
		keepAlive time.Duration
	}{
		{"during the prefill", instance.Prefill, during, 0},
		{"before the first token", instance.Decode, during, 0},
		{"after the header of a keep-alive", instance.Prefill, during, often},
		{"in the stream", instance.Decode, fakevllm.Fault{Kind: fakevllm.FaultHang, Times: 1, At: fakevllm.AfterTokens, Tokens: 2}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			begun := tc.keepAlive > 0 || tc.fault.Tokens > 0
			scenarios := both()
			if begun {
				scenarios = streamed()
			}
			eachAPI(t, scenarios, func(t *testing.T, q scenario) {
				r := start(t, fakevllm.NIXL, 1, 1, func(o *forward.Options) { o.KeepAlive = tc.keepAlive })
				engine := r.engines(tc.role)[0]
				script(t, engine, tc.fault)
				got := make(chan answer, 1)
				if begun {
					resp, in := r.openStream(q)
					go func() { got <- readRest(resp, in) }()
				} else {
					go func() { got <- r.postScenario(q) }()
				}
				eventually(t, "the fault to happen", func() bool { return engine.Counters().Faults == 1 })
				r.cut(leg.ErrStopping)
				a, e := <-got, r.entry()
				want := relay.OutcomeUnavailable
				switch {
				case !begun:
					r.checkRefused(q, a, http.StatusServiceUnavailable, "is stopping")
				case tc.keepAlive == 0:
					want = relay.OutcomeBroken
					fallthrough
				default:
					r.checkBroken(q, a)
				}
				if e.Outcome != want || e.Failure != "" || e.Failed > 0 && want == relay.OutcomeBroken || !strings.Contains(string(a.body), "is stopping") {
					t.Errorf("%s, entry %+v", a.body, e)
				}
				eventually(t, "the engine to abort", func() bool { return aborted(engine.Counters()) == 1 })
				if got := r.rec.retried(); got != "" || !r.tracker.Available(key(tc.role, engine)) {
					t.Errorf("retried %q, or the instance was blamed", got)
				}
				r.checkEngines()
			})
		})
	}
}

// A proxy that cuts its requests also breaks off a long answer that is not streamed.
func TestProxyCutsPassthrough(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.Plain, 1, 1, nil)
	r.members.set(handlerEngine(t, instance.Decode, func(w http.ResponseWriter, q *http.Request) {
		_, _ = w.Write(make([]byte, 2<<20))
		_ = http.NewResponseController(w).Flush()
		<-q.Context().Done()
	}))
	resp, err := http.DefaultClient.Do(newRequest(t.Context(), t, http.MethodPost, r.URL+"/tokenize", strings.NewReader(`{"model":"m","prompt":"x"}`)))
	require.NoError(t, err)
	defer resp.Body.Close()
	r.cut(leg.ErrStopping)
	if n, err := io.Copy(io.Discard, resp.Body); err == nil {
		t.Errorf("a cut answer of %d bytes ended cleanly", n)
	}
	e := r.entry()
	assert.True(t, e.Status == http.StatusOK && e.Outcome == relay.OutcomeBroken && e.Failure == "", "entry %+v", e)
}

// An upload in progress is cut, too.
func TestProxyCutsUpload(t *testing.T) {
	t.Parallel()
	for _, length := range []int64{20, 1 << 20, -1} {
		r := start(t, fakevllm.NIXL, 1, 1, func(o *forward.Options) { o.BodyTimeout = time.Hour })
		in, out := io.Pipe()
		t.Cleanup(func() { _ = out.Close() })
		q := newRequest(t.Context(), t, http.MethodPost, r.URL+completionsPath, in)
		q.ContentLength = length
		got := make(chan *http.Response, 1)
		go func() {
			resp, err := http.DefaultClient.Do(q)
			assert.NoError(t, err)
			got <- resp
		}()
		_, _ = io.WriteString(out, `{"model":"m"`)
		eventually(t, "the upload to begin", func() bool { return r.handler.Requests() == 1 })
		r.cut(leg.ErrStopping)
		e, resp := r.entry(), <-got
		if resp == nil {
			continue
		}
		defer resp.Body.Close()
		assert.True(t, resp.StatusCode == http.StatusServiceUnavailable && e.Outcome == relay.OutcomeUnavailable,
			"length %d: %d, entry %+v", length, resp.StatusCode, e)
	}
}

// Requests whose announced bodies do not arrive end when their client leaves or the proxy stops.
func TestMissingBody(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.NIXL, 1, 1, nil)
	clients := map[string][]*net.TCPConn{}
	sent := 0
	for _, path := range []string{"/v1/responses/x", "/tokenizer_info"} {
		script(t, r.D[0], fakevllm.Fault{Kind: fakevllm.FaultHang, Path: path + "*"})
	}
	for _, line := range []string{"GET /v1/responses/x", "POST /v1/responses/x/cancel", "GET /tokenizer_info"} {
		for _, rest := range []string{
			"Content-Length: 5\r\n\r\n", "Content-Length: 5\r\nExpect: 100-continue\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n",
			"Transfer-Encoding: chunked\r\n\r\n100000\r\n" + strings.Repeat("x", 100<<10),
		} {
			for _, end := range []string{"close", "reset", "cut"} {
				c, _ := r.sendRaw(line + " HTTP/1.1\r\nHost: x\r\n" + rest)
				clients[end] = append(clients[end], c)
				sent++
			}
		}
	}
	eventually(t, "the engine to hang", func() bool { return r.D[0].Counters().Faults == int64(sent) })
	for _, c := range clients["reset"] {
		require.NoError(t, c.SetLinger(0))
	}
	for _, c := range slices.Concat(clients["reset"], clients["close"]) {
		require.NoError(t, c.Close())
	}
	for range sent - len(clients["cut"]) {
		e := r.entry()
		assert.Equal(t, relay.OutcomeClientGone, e.Outcome, "the client has left: entry %+v", e)
	}
	r.cut(leg.ErrStopping)
	for _, c := range clients["cut"] {
		if got, err := io.ReadAll(c); err != nil || !strings.Contains(string(got), "HTTP/1.1 503 ") {
			t.Errorf("the proxy is stopping: %v: %s", err, got)
		}
		e := r.entry()
		assert.Equal(t, relay.OutcomeUnavailable, e.Outcome, "the proxy is stopping: entry %+v", e)
	}
}

func TestTransferParams_Missing(t *testing.T) {
	t.Parallel()
	eachAPI(t, both(), func(t *testing.T, q scenario) {
		r := start(t, fakevllm.NIXL, 1, 1, nil)
		script(t, r.P[0], fakevllm.Fault{Kind: fakevllm.FaultNoKV, Times: 1})
		r.checkServed(q)
		require.Equal(t, 1, r.rec.missing, "missing KV transfers counted")
		n := r.D[0].Counters().LocalPrefills
		require.True(t, n == 1, "decode computed %d prompts", n)
	})
}

func TestBadInput(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.Plain, 1, 1, func(o *forward.Options) { o.MaxBody = 1000 })
	for _, tc := range []struct {
		name, path, body, contentType string
		status                        int
		says                          string
	}{
		{"no content type", "/v1/completions", `{}`, "", 400, `{"error":{"message":"1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed","type":"Bad Request","param":null,"code":400}}`},
		{"wrong content type", "/v1/completions", `{}`, "text/plain", 400, "Unsupported Media Type: Only 'application/json' is allowed"},
		{"what curl sends", "/tokenize", `{}`, "application/x-www-form-urlencoded", 400, "Unsupported Media Type: Only 'application/json' is allowed"},
		{"not UTF-8", "/v1/completions", "{\"prompt\":\"\xff\"}", "application/json", 400, `{"detail":"There was an error parsing the body"}`},
		{"too large", "/v1/completions", `{"prompt":"` + strings.Repeat("x", 1000) + `"}`, "application/json", 413, "--max-body-bytes"},
		{"unknown model of count_tokens", "/v1/messages/count_tokens", `{"model":"other","messages":[]}`, "application/json", 404, `{"type":"error","error":{"type":"NotFoundError","message":"The model`},
		{"unknown model", "/v1/completions", `{"model":"other","prompt":"x"}`, "application/json", 404, "The model `other` does not exist. Valid aliases: m."},
		{"unknown route", "/v1/nonsense", `{}`, "application/json", 404, `{"detail":"Not Found"}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := r.post(tc.path, tc.body, "Content-Type", tc.contentType, "X-PD-Trace", "1")
			if tc.name != "unknown route" {
				if e := r.entry(); e.Bytes != int64(len(a.body)) || a.header.Get("X-PD-Attempts") != "0" {
					t.Errorf("%d of %d bytes, header %v", e.Bytes, len(a.body), a.header)
				}
			}
			if a.status != tc.status || !strings.Contains(string(a.body), tc.says) || a.header.Get("Content-Type") != "application/json" {
				t.Fatalf("%d: %s", a.status, a.body)
			}
		})
	}
	require.EqualValues(t, 0, legs(r.P)+legs(r.D), "legs for requests that are refused")
	ok := r.post("/v1/completions", `{"model":"m","prompt":"x","max_tokens":2}`, "Content-Type", "Application/JSON; charset=utf-8")
	ok.require(t, http.StatusOK)
}

// uvicorn closes idle connections: a pooled connection that is closed is no failure.
func TestStalePooledConnection(t *testing.T) {
	t.Parallel()
	eachAPI(t, both(), func(t *testing.T, q scenario) {
		r := start(t, fakevllm.NIXL, 1, 1, nil)
		for range 5 {
			r.checkServed(q)
			r.P[0].CloseIdle()
			r.D[0].CloseIdle()
			// net/http may notice the closed connection only after it has sent the request, which is then retried.
			if e := r.entry(); e.Failed != 0 && os.Getenv("PD_TEST_UPSTREAM") != "std" {
				t.Fatalf("a closed idle connection counted as a failure: %+v", e)
			}
		}
		r.checkEngines()
	})
}

// An ejected instance that hangs does not delay a list of models that other instances can provide.
func TestModels_EjectedNotQueried(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.NIXL, 1, 2, nil)
	sick := r.D[0]
	script(t, sick, fakevllm.Fault{Kind: fakevllm.FaultHang, Path: "*"})
	for _, i := range r.members.Snapshot().All() {
		if i.Role == instance.Decode && i.Address == sick.Address() {
			r.tracker.Eject(i, "silent")
		}
	}
	asked := sick.Counters().Requests
	a := r.get("/v1/models")
	for _, q := range sick.Requests() {
		assert.NotEqual(t, "/v1/models", q.Path, "the failing instance was queried")
	}
	assert.True(t, a.status == http.StatusOK && sick.Counters().Requests == asked,
		"%d, %d legs to the failing instance", a.status, sick.Counters().Requests-asked)
	sick.ClearFaults()
}

// A decode engine that loses the connection after it has worked on a request has spent the KV transfer. This
// holds even if the connection was reused and may have been closed as idle: a new prefill is made.
func TestSpentTransfer_ReusedConnection(t *testing.T) {
	t.Parallel()
	for _, used := range []bool{false, true} {
		r := start(t, fakevllm.NIXL, 1, 1, nil)
		var drop atomic.Bool
		engine := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: r.D[0].Address()})
		door := handlerEngine(t, instance.Decode, func(w http.ResponseWriter, q *http.Request) {
			a := httptest.NewRecorder()
			engine.ServeHTTP(a, q) // the engine has done all the work
			if drop.CompareAndSwap(true, false) {
				panic(http.ErrAbortHandler)
			}
			w.Header().Set("Content-Type", a.Header().Get("Content-Type"))
			w.WriteHeader(a.Code)
			_, _ = w.Write(a.Body.Bytes())
		})
		door.Record.Connector = string(fakevllm.NIXL)
		r.members.set(instanceOf(instance.Prefill, r.P[0], fakevllm.NIXL), door)
		body, want := chatBody(false, ""), int64(2)
		if used {
			r.checkComplete(r.post("/v1/chat/completions", body), true, body)
			r.entry()
			want++
		}
		drop.Store(true)
		r.checkComplete(r.post("/v1/chat/completions", body), true, body)
		r.entry()
		if n, refused := legs(r.P), r.D[0].Counters().TransfersRefused; n != want || refused != 0 {
			t.Errorf("used %v: %d prefills, want %d; %d KV transfers refused", used, n, want, refused)
		}
	}
}

// The lease of a KV transfer begins when prefill answers. If the proxy was suspended before it read that
// answer, the lease may have ended: decode must not read the blocks.
func TestPrefillAnsweredBeforeASuspension(t *testing.T) {
	t.Parallel()
	var suspended atomic.Bool
	suspended.Store(true)
	r := start(t, fakevllm.NIXL, 1, 1, func(o *forward.Options) {
		o.KVBudget = time.Minute
		o.ReceivedFrom = func(since, now time.Time) time.Time {
			if suspended.Swap(false) {
				return since.Add(-time.Hour)
			}
			return now
		}
	})
	body := chatBody(false, "")
	r.checkComplete(r.post("/v1/chat/completions", body), true, body)
	if e := r.entry(); e.Failed != 1 || !strings.HasPrefix(r.rec.retried(), "decode/handover_expired") || legs(r.P) != 2 {
		t.Errorf("%+v, retried %s, %d prefills", e, r.rec.retried(), legs(r.P))
	}
}

// Decode instances that cannot reach a prefill instance answer 500. The next attempt uses another prefill
// instance, although the policy prefers the one with the prompt in its cache. If there is no other, the proxy
// uses the same one again.
func TestUnreachablePrefill_NotPairedAgain(t *testing.T) {
	t.Parallel()
	engines := 0
	r := startTuned(t, fakevllm.NIXL, 2, 4, tuning{
		engine: func(o *fakevllm.Options) {
			if o.Shared = nil; engines == 0 {
				o.SideChannelHost = "127.0.0.3" // nothing listens there
			}
			engines++
		},
		sched: prefixPolicy(t),
	})
	failed := 0
	for i := range 16 {
		text := strings.Repeat(strconv.Itoa(i)+" is the number of this line. ", 40)
		path, body := "/v1/completions", `{"model":"m","max_tokens":2,"prompt":"`+text+`"}`
		if i%2 == 1 { // this stream ends without an event
			path, body = "/v1/responses", `{"model":"m","max_output_tokens":2,"stream":true,"input":"`+text+`"}`
		}
		a := r.post(path, body)
		e := r.entry()
		assert.True(t, a.status == http.StatusOK && e.Failed <= 2,
			"%s %d: %d after %d failures: %s", path, i, a.status, e.Failed, a.body)
		failed += e.Failed
	}
	assert.NotEqual(t, 0, failed, "no prompt was sent to the prefill instance that decode cannot reach")
}

// The last attempt goes to the decode instance that has failed only requests with a KV transfer.
func TestLastAttemptAfterUnreachablePrefills(t *testing.T) {
	t.Parallel()
	r := startTuned(t, fakevllm.NIXL, 2, 3, tuning{
		forward: func(o *forward.Options) { o.Fallback, o.RetryRatio = true, -1 },
		engine:  func(o *fakevllm.Options) { o.Shared, o.SideChannelHost = nil, "127.0.0.3" }, // nothing listens there
	})
	for _, d := range r.D[1:] {
		script(t, d, fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: 503})
	}
	for range 8 {
		r.post("/v1/completions", `{"model":"m","max_tokens":2,"prompt":"a prompt"}`).check(t, http.StatusOK)
	}
}

// A request that has used up its attempts gets one more, decode-only, if a decode instance has failed it only
// with a KV transfer: that instance can answer, and the others may have left.
func TestOneMoreAttemptWithoutTransfer(t *testing.T) {
	t.Parallel()
	reset, failing := fakevllm.Fault{Kind: fakevllm.FaultReset}, fakevllm.Fault{Kind: fakevllm.FaultErrorEvent}
	for _, tc := range []struct {
		attempts, most int              // MaxAttempts, and the failures that a request may have
		faults         []fakevllm.Fault // of the decode instances after the first
	}{
		{2, 2, []fakevllm.Fault{reset}}, {3, 3, []fakevllm.Fault{reset}}, {2, 2, []fakevllm.Fault{reset, reset}},
		{3, 4, []fakevllm.Fault{failing, reset}}, // the first and the second get one more attempt each
	} {
		attempts := tc.attempts
		r := startTuned(t, fakevllm.NIXL, 2, 1+len(tc.faults), tuning{
			forward: func(o *forward.Options) { o.Fallback, o.MaxAttempts, o.RetryRatio = true, attempts, -1 },
			engine:  func(o *fakevllm.Options) { o.Shared, o.SideChannelHost = nil, "127.0.0.3" }, // nothing listens there
			sched:   noProbes,
		})
		for i, fault := range tc.faults {
			script(t, r.D[1+i], fault)
		}
		for range 12 { // some begin on one decode instance, some on another
			a := r.post("/v1/completions", `{"model":"m","max_tokens":2,"prompt":"a prompt"}`)
			if e := r.entry(); a.status != http.StatusOK || e.DecodeOnly != bypass.TransferLost || e.Failed > tc.most {
				t.Errorf("%+v: %d after %d failures, decode-only because of %q: %s", tc, a.status, e.Failed, e.DecodeOnly, a.body)
			}
		}
	}
}

// The additional attempt is on a decode instance that has not failed the request, if there is one.
func TestOneMoreAttempt_PrefersUntried(t *testing.T) {
	t.Parallel()
	r := startTuned(t, fakevllm.NIXL, 2, 3, tuning{
		forward: func(o *forward.Options) { o.Fallback, o.MaxAttempts, o.RetryRatio = true, 2, -1 },
		health:  func(o *health.Options) { o.MaxFailures = 1000 },
	})
	script(t, r.D[0], fakevllm.Fault{Kind: fakevllm.FaultReset})
	script(t, r.D[1], fakevllm.Fault{Kind: fakevllm.FaultReset})
	for range 24 {
		a := r.post("/v1/completions", `{"model":"m","max_tokens":2,"prompt":"a prompt"}`)
		if e := r.entry(); a.status != http.StatusOK || e.Failed > 2 {
			t.Errorf("%d after %d failures, decode-only because of %q: %s", a.status, e.Failed, e.DecodeOnly, a.body)
		}
	}
}

// While no instance has a list of models, no model is reported as unknown.
func TestNoListOfModels(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.NIXL, 1, 1, nil)
	for _, in := range r.members.Snapshot().All() {
		is := *in
		is.Record.Models, is.View = nil, instance.Pending
		r.members.set(&is)
		if a := r.post(completionsPath, `{"model":"m","prompt":"a prompt"}`); a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") == "" {
			t.Errorf("%d %s", a.status, a.body)
		}
	}
}

// A request does not return to a full engine while another engine may serve it.
func TestFullEngine_TriedLast(t *testing.T) {
	t.Parallel()
	for _, both := range []bool{false, true} { // the full engine is a decode instance, too
		attempts := 3
		if both {
			attempts = 2
		}
		r := startTuned(t, fakevllm.NIXL, 2, 2, tuning{
			forward: func(o *forward.Options) { o.Fallback, o.MaxAttempts, o.RetryRatio = false, attempts, -1 },
			sched:   noProbes,
		})
		script(t, r.P[0], fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: http.StatusTooManyRequests})
		if both {
			r.members.set(append(r.members.Snapshot().All(), instanceAt(instance.Decode, r.P[0].Address(), fakevllm.NIXL))...)
		} else {
			script(t, r.D[0], fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: http.StatusInternalServerError})
		}
		for range 12 { // some begin with the instances that fail
			if a := r.post(completionsPath, `{"model":"m","max_tokens":2,"prompt":"a prompt"}`); a.status != http.StatusOK {
				t.Errorf("both %t: %d after %d failures: %s", both, a.status, r.entry().Failed, a.body)
			}
		}
	}
}

// If all decode instances that a prefill instance can be paired with fail, pairs of another group are tried
// before a second attempt on these.
func TestOtherPairs_BeforeSecondRound(t *testing.T) {
	t.Parallel()
	r := startTuned(t, fakevllm.NIXL, 2, 2, tuning{
		forward: func(o *forward.Options) { o.Fallback, o.MaxAttempts, o.RetryRatio = false, 2, -1 },
		sched:   prefixPolicy(t),
	})
	r.ofVersions("0.31.0", "0.32.0", "0.31.0", "0.32.0")
	script(t, r.D[0], fakevllm.Fault{Kind: fakevllm.FaultReset})
	for i := range 8 { // some begin in one group, some in the other
		a := r.post("/v1/completions", `{"model":"m","max_tokens":2,"prompt":"`+strings.Repeat(strconv.Itoa(i)+" is the number of this line. ", 40)+`"}`)
		if e := r.entry(); a.status != http.StatusOK || e.DecodeOnly != "" {
			t.Errorf("%d after %d failures, decode-only because of %q: %s", a.status, e.Failed, e.DecodeOnly, a.body)
		}
	}
	assert.True(t, legs(r.D[:1]) != 0, "no request began with the pair that fails")
}

// A prefill instance that failed a request is not tried again after another one's KV transfer was spent, even
// if its cache has the prompt.
func TestFailedPrefill_NotRetried(t *testing.T) {
	t.Parallel()
	r := startTuned(t, fakevllm.NIXL, 3, 2, tuning{
		forward: func(o *forward.Options) { o.RetryRatio = -1 },
		sched:   prefixPolicy(t),
	})
	ask := func(prompt string) {
		t.Helper()
		r.post("/v1/completions", `{"model":"m","max_tokens":2,"prompt":"`+prompt+`"}`).check(t, http.StatusOK)
	}
	for i := range 8 {
		prompt := strings.Repeat(strconv.Itoa(i)+" is the number of this line. ", 40)
		ask(prompt)
		cached := r.P[slices.IndexFunc(r.P, func(p *fakevllm.Server) bool { return legs([]*fakevllm.Server{p}) > 0 })]
		script(t, cached, fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: 500})
		for _, d := range r.D {
			script(t, d, fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: 503, Times: 1})
		}
		ask(prompt)
		n := legs([]*fakevllm.Server{cached})
		assert.EqualValues(t, 2, n, "the instance that failed the request got %d prefills", n-1)
		for _, e := range slices.Concat(r.P, r.D) {
			e.ClearFaults()
			e.ForgetRequests()
		}
	}
}

// A refused prompt does not count as work of the instance: its chats stay there.
func TestRefusedPrompt_NotCounted(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		mode fakevllm.Mode
		d    *flow.Disaggregate // with it, picks are tentative
	}{{fakevllm.NIXL, nil}, {fakevllm.NIXL, &flow.Disaggregate{}}, {fakevllm.Mooncake, nil}} {
		r := startTuned(t, tc.mode, 2, 1, tuning{
			forward: func(o *forward.Options) { o.Disaggregate = tc.d },
			engine:  func(o *fakevllm.Options) { o.MaxModelLen = 2000 },
			sched:   prefixPolicy(t),
		})
		ask := func(text string, status int) string {
			t.Helper()
			a := r.post("/v1/completions", `{"model":"m","max_tokens":2,"prompt":"`+text+`"}`)
			e := r.entry()
			a.check(t, status)
			return e.Prefill
		}
		chat := func(i int) string { return strings.Repeat(strconv.Itoa(i)+" is the number of this line. ", 150) }
		var homes []string
		for i := range 8 {
			homes = append(homes, ask(chat(i), http.StatusOK))
		}
		ask(strings.Repeat("too many words ", 1<<16), http.StatusBadRequest)
		for i, home := range homes {
			now := ask(chat(i), http.StatusOK)
			assert.Equal(t, home, now, "chat %d went to %s, then to %s", i, home, now)
		}
	}
}

// If KV transfers fail, a decode instance computes the prompt before the attempts are used up, even if it is
// the only one.
func TestUnreachablePrefills_Bypassed(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		decodes, attempts, failures int
		fallback                    bool
		status                      int
		reason                      string
	}{
		{4, 4, 2, true, http.StatusOK, bypass.TransferLost},
		{1, 4, 2, true, http.StatusOK, bypass.TransferLost},
		{4, 2, 1, true, http.StatusOK, bypass.TransferLost},
		{4, 4, 4, false, http.StatusInternalServerError, ""},
	} {
		r := startTuned(t, fakevllm.NIXL, 3, tc.decodes, tuning{
			forward: func(o *forward.Options) { o.Fallback, o.MaxAttempts, o.RetryRatio = tc.fallback, tc.attempts, -1 },
			engine:  func(o *fakevllm.Options) { o.Shared, o.SideChannelHost = nil, "127.0.0.3" }, // nothing listens there
		})
		a := r.post("/v1/completions", `{"model":"m","max_tokens":2,"prompt":"a prompt"}`, "X-PD-Trace", "1")
		attempts := strconv.Itoa(tc.failures)
		if tc.status == http.StatusOK {
			attempts = strconv.Itoa(tc.failures + 1)
		}
		assert.Equal(t, attempts, a.header.Get("X-PD-Attempts"), "%+v: attempts", tc)
		if e := r.entry(); a.status != tc.status || e.Failed != tc.failures || e.DecodeOnly != tc.reason || a.header.Get("X-PD-Decode-Only") != tc.reason {
			t.Errorf("%+v: %d after %d failures, decode-only because of %q: %s", tc, a.status, e.Failed, e.DecodeOnly, a.body)
		}
	}
}
