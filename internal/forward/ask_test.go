package forward_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"unicode/utf16"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/forward/flow"
	"github.com/pdmesh/pdmesh/internal/forward/relay"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai/request"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/refusals"
)

// argued returns the reason why the proxy answers a recorded request differently from an engine, "" if it
// does not. docs/api.md lists these requests.
func argued(c *refusals.Case) string {
	switch c.Name {
	case "NaN elsewhere":
		return "NaN is no JSON"
	case "UTF-8 with a mark", "UTF-16", "UTF-16 without a mark":
		return "JSON is UTF-8 without a mark"
	case "deep":
		return "nesting is bounded"
	case "a JSON kind, broken":
		return "the Content-Type is looked at first"
	case "route GET /v1/models/tiny":
		return "official clients ask for it"
	case "route GET /ping", "route POST /ping", "route GET /load", "route POST /v1/completions/render", "route POST /metrics", "route GET /version",
		"route GET /", "route HEAD /health", "route GET /v1/completions/", "route POST /inference/v1/generate":
		return "the proxy's own routes"
	}
	for _, field := range []string{"kv_transfer_params", "ec_transfer_params"} {
		if strings.Contains(c.Text, field) {
			return "the field is removed, whatever its value"
		}
	}
	return ""
}

// The proxy answers an invalid request with the error of an engine.
func TestInvalidRequest_EngineError(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.NIXL, 1, 1, nil)
	refused := 0
	for _, c := range refusals.All(t) {
		if argued(&c) != "" || strings.HasPrefix(c.Path, "/v1/messages/") ||
			strings.HasPrefix(c.Path, "/v1/embeddings") || strings.HasPrefix(c.Path, "/v1/score") || strings.HasPrefix(c.Path, "/v1/rerank") {
			continue // the simulator does not have the last three routes
		}
		body := bytes.ReplaceAll(c.Body(), []byte(`"tiny"`), []byte(`"m"`))
		want := r.sendTo(r.D[0].URL(), c.Method, c.Path, c.Type(), body)
		got := r.sendTo(r.URL, c.Method, c.Path, c.Type(), body)
		// If the proxy sends a body to no engine, the text of the error is the proxy's.
		askable := c.Method != http.MethodPost || request.MayAsk(body)
		if got.status != want.status || want.status >= 400 && askable && string(got.body) != string(want.body) {
			t.Errorf("%s: %.300s\nproxy  %d %s\nengine %d %s", c.Name, body, got.status, got.body, want.status, want.body)
		}
		if want.status >= 400 {
			refused++
			a, b := got.header.Get("Content-Type"), want.header.Get("Content-Type")
			assert.Equal(t, b, a, "%s: Content-Type %q, an engine says %q", c.Name, a, b)
		}
	}
	assert.GreaterOrEqual(t, refused, 250, "only %d wrong requests", refused)
	r.checkEngines()
}

// sendTo sends a request with any method, path, content type and body.
func (r *rig) sendTo(base, method, path, contentType string, body []byte) answer {
	r.t.Helper()
	req := newRequest(r.t.Context(), r.t, method, base+path, bytes.NewReader(body), "X-Request-Id", "asked", "Content-Type", contentType)
	if contentType == "" {
		req.Header.Del("Content-Type")
	}
	a := do(http.DefaultClient, req)
	require.NoError(r.t, a.err)
	return a
}

// An invalid body is sent to one engine, once and unchanged. The engine's refusal is the answer, and no
// instance is blamed.
func TestInvalidRequest_SentToOneEngine(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, path, body, says string }{
		{"two errors", "/v1/completions", `{"prompt":"x","max_tokens":"x","temperature":"y"}`, `"param":"body.max_tokens"`},
		{"a number Python takes", "/v1/chat/completions", `{"messages":[{"role":"user","content":"x"}],"temperature":NaN}`, "must be a finite number, got +Inf"},
		{"broken", "/v1/completions", `{"prompt":`, "JSON decode error"},
		{"nothing", "/v1/completions", ``, "Field required"},
		{"a hidden value", "/v1/completions", `{"prompt":"x","max_tokens":0}`, `"param":"max_tokens"`},
		{"no messages", "/v1/chat/completions", `{"model":"m"}`, `"param":"body.messages"`},
		{"another endpoint", "/tokenize", `{"prompt":"x"`, "JSON decode error"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := start(t, fakevllm.NIXL, 1, 2, nil)
			a := r.post(tc.path, tc.body, "X-Request-Id", "mine", "X-PD-Trace", "1", "X-Api-Key", "secret", "Authorization", "Bearer k")
			a.require(t, http.StatusBadRequest, tc.says)
			assert.Equal(t, flow.AskRefused, r.rec.askOutcomes(), "asked")
			queried := append(posted(r.D[0]), posted(r.D[1])...)
			require.True(t, len(queried) == 1 && len(posted(r.P[0])) == 0,
				"%d decode and %d prefill instances were queried", len(queried), len(posted(r.P[0])))
			q := queried[0]
			if string(q.Body) != tc.body || q.Header.Get("X-Api-Key") != "" || q.Header.Get("Authorization") != "Bearer k" ||
				!strings.HasPrefix(q.Header.Get("X-Request-Id"), "mine-") {
				t.Errorf("the engine got %q, %v", q.Body, q.Header)
			}
			if a.header.Get("X-Request-Id") != "mine" || a.header.Get("X-PD-Decode") == "" || a.header.Get("X-PD-Attempts") != "1" {
				t.Errorf("the client got %v", a.header)
			}
			if e := r.entry(); e.Failed != 0 || e.Outcome != relay.OutcomeClientError || e.Status != 400 || e.Decode == "" || r.rec.retried() != "" {
				t.Errorf("entry %+v, retries %q", e, r.rec.retried())
			}
			r.noneTroubled()
			r.checkEngines()
		})
	}
}

const brokenBody = `{"model":"m","prompt":"x"`

// If an engine answers an invalid request with anything but a refusal, the client gets the proxy's refusal,
// and no instance is blamed.
func TestInvalidRequest_OnlyRefusalPassedOn(t *testing.T) {
	t.Parallel()
	own := `expected a comma`
	for _, tc := range []struct {
		name, body string
		fault      fakevllm.Fault
		outcome    string
	}{
		{"served", `{"prompt":"x","max_tokens":2,"x":NaN}`, fakevllm.Fault{}, flow.AskAccepted},
		{"streamed", `{"prompt":"x","stream":true,"max_tokens":1000000,"ignore_eos":true,"x":NaN}`, fakevllm.Fault{}, flow.AskAccepted},
		{"moved", brokenBody, fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: 307, Header: map[string]string{"Location": "http://192.0.2.1/"}}, flow.AskFailed},
		{"its error", brokenBody, fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: 500}, flow.AskFailed},
		{"not now", brokenBody, fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: 503}, flow.AskFailed},
		{"too many", brokenBody, fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: 429}, flow.AskFailed},
		{"the key", brokenBody, fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: 401}, flow.AskFailed},
		{"no such model", brokenBody, fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: 404}, flow.AskFailed},
		{"reset", brokenBody, fakevllm.Fault{Kind: fakevllm.FaultReset}, flow.AskFailed},
		{"closed", brokenBody, fakevllm.Fault{Kind: fakevllm.FaultClose}, flow.AskFailed},
		{"no HTTP", brokenBody, fakevllm.Fault{Kind: fakevllm.FaultGarbage}, flow.AskFailed},
		{"silent", brokenBody, fakevllm.Fault{Kind: fakevllm.FaultHang}, flow.AskFailed},
		{"a refusal", brokenBody, fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: 422, Body: own}, flow.AskRefused},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := start(t, fakevllm.NIXL, 1, 1, nil)
			if tc.fault.Kind != "" {
				tc.fault.Path = "/v1/*"
				script(t, r.D[0], tc.fault)
			}
			a := r.post("/v1/completions", tc.body)
			says, status := own, http.StatusBadRequest
			switch tc.outcome {
			case flow.AskAccepted:
				says = "expected a value"
			case flow.AskRefused:
				status = 422
			}
			require.True(t, a.status == status && a.err == nil && strings.Contains(string(a.body), says),
				"%d, %v: %s", a.status, a.err, a.body)
			assert.Equal(t, tc.outcome, r.rec.askOutcomes(), "asked")
			if e := r.entry(); e.Failed != 0 || r.rec.retried() != "" || e.Outcome != relay.OutcomeClientError {
				t.Errorf("entry %+v, retries %q", e, r.rec.retried())
			}
			n := len(posted(r.D[0]))
			assert.True(t, n == 1 && len(posted(r.P[0])) == 0, "%d questions to decode, %d to prefill", n, len(posted(r.P[0])))
			r.noneTroubled()
			r.checkEngines()
			if tc.name == "streamed" {
				eventually(t, "the engine aborts", func() bool { return r.D[0].Counters().Aborted == 1 })
			}
		})
	}
}

// An engine gets no body with fields that steer KV transfers, on any route and in any spelling: such a field
// could make the engine connect to any host.
func TestSteeringFields_NotSent(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.NIXL, 1, 1, nil)
	for _, field := range []string{
		`"kv_transfer_params":{"do_remote_prefill":true,"remote_host":"192.0.2.1","remote_port":1}`,
		`"kv_transfer_params":{"remote_hosts":["192.0.2.1"]}`,
		`"kv_transfer_params":{"metaserver":"http://192.0.2.1/"}`,
		`"kv_transfer_params":{"remote_bootstrap_addr":"http://192.0.2.1:8998"}`,
		`"kv_transfer_params":{"remote_prefiller":{"remote_host":"192.0.2.1"}}`,
		`"kv_transfer_params":{"remote_kv_source":{"remote_host":"192.0.2.1"}}`,
		`"vllm_xargs":{"kv_transfer_params":{"remote_host":"192.0.2.1"}}`,
		`"sampling_params":{"extra_args":{"kv_transfer_params":{"remote_host":"192.0.2.1"}}}`,
		`"ec_transfer_params":{"consumer_zmq":"tcp://192.0.2.1:1"}`,
		`"ec_transfer_params":{"hash":{"peer_host":"192.0.2.1"}}`,
		`"disagg_spec":{"receiver_host":"192.0.2.1"}`,
		`"bootstrap_host":"192.0.2.1"`, `"bootstrap_port":1`, `"bootstrap_room":1`,
		`"priority":-100`,
	} {
		plain := `{"model":"m","prompt":"x","messages":[{"role":"user","content":"x"}],"max_tokens":1,` + field
		var utf16LE []byte
		for _, u := range utf16.Encode([]rune(plain + `}`)) {
			utf16LE = binary.LittleEndian.AppendUint16(utf16LE, u)
		}
		for _, path := range []string{"/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/tokenize"} {
			for how, body := range map[string]string{
				"NaN":             plain + `,"x":NaN}`,
				"Infinity":        plain + `,"x":[-Infinity]}`,
				"escaped":         strings.Replace(plain, field[1:3], fmt.Sprintf(`\u%04x`, field[1])+field[2:3], 1) + `,"x":NaN}`,
				"UTF-16":          string(utf16LE),
				"with a mark":     "\xff\xfe" + string(utf16LE),
				"with UTF-8 mark": "\ufeff" + plain + `}`,
				"cut":             plain,
			} {
				a := r.post(path, body)
				assert.Equal(t, http.StatusBadRequest, a.status, "%s, %s of %s: %s", path, how, field, a.body)
			}
		}
	}
	got := strings.ReplaceAll(r.rec.askOutcomes(), flow.AskWithheld, "")
	assert.Equal(t, "", strings.TrimSpace(got), "asked: %q", got)
	for _, s := range append(r.P, r.D...) {
		if n := len(posted(s)); n != 0 {
			t.Errorf("%d requests reached %s, the first: %q", n, s.Address(), posted(s)[0].Body)
		}
	}
	r.checkEngines()
}

func TestInvalidRequest_NoInstance(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.Plain, 0, 0, nil)
	a := r.post("/v1/completions", `{"prompt":"x","max_tokens":2.5}`)
	want := `{"error":{"message":"invalid max_tokens: must be an integer","type":"BadRequestError","param":"max_tokens","code":400}}`
	require.True(t, a.status == http.StatusBadRequest && string(a.body) == want, "%d: %s", a.status, a.body)
	assert.Equal(t, flow.AskNoInstance, r.rec.askOutcomes(), "asked")
}

// A prefill instance is queried if there is no decode instance. If no instance serves the model, an engine
// still reports the other errors of the request.
func TestInvalidRequest_QueryTarget(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.Plain, 1, 0, nil)
	if a := r.post("/v1/completions", brokenBody); a.status != http.StatusBadRequest || r.rec.askOutcomes() != flow.AskRefused || len(posted(r.P[0])) != 1 {
		t.Errorf("%d: %s", a.status, a.body)
	}
	if a := r.post("/v1/completions", `{"model":"other","prompt":"x","max_tokens":2.5}`); a.status != http.StatusBadRequest || r.rec.askOutcomes() != flow.AskRefused {
		t.Errorf("%d: %s", a.status, a.body)
	}
	// vLLM checks the model before it checks the limit.
	a := r.post("/v1/completions", `{"model":"other","prompt":"x","max_tokens":0}`)
	a.check(t, http.StatusNotFound, "The model `other` does not exist. Valid aliases: m.")
	r.checkEngines()
}

// The number of concurrent queries about invalid requests is bounded: the proxy answers further invalid
// requests itself at once.
func TestInvalidRequest_QueriesBounded(t *testing.T) {
	t.Parallel()
	const many = 40
	arrived := make(chan struct{}, many)
	release := make(chan struct{})
	r := start(t, fakevllm.Plain, 0, 0, nil)
	r.members.set(handlerEngine(t, instance.Decode, func(w http.ResponseWriter, q *http.Request) {
		arrived <- struct{}{}
		select {
		case <-release:
		case <-q.Context().Done():
		}
		http.Error(w, `{}`, http.StatusBadRequest)
	}))
	var clients sync.WaitGroup
	for range many {
		clients.Go(func() {
			r.post("/v1/completions", brokenBody).check(t, http.StatusBadRequest)
		})
	}
	clients.Wait()
	close(release)
	asked := strings.Fields(r.rec.askOutcomes())
	busy := 0
	for _, a := range asked {
		if a == flow.AskBusy {
			busy++
		}
	}
	assert.True(t, len(asked) == many && len(arrived) <= many-busy && busy != 0,
		"%d of %d reached the engine, %d were not sent", len(arrived), many, busy)
	r.checkEngines()
}

// A client that leaves while an engine is queried ends the query.
func TestClientLeaves_DuringQuery(t *testing.T) {
	t.Parallel()
	arrived, left := make(chan struct{}), make(chan struct{})
	r := start(t, fakevllm.Plain, 0, 0, nil)
	r.members.set(handlerEngine(t, instance.Decode, func(_ http.ResponseWriter, q *http.Request) {
		close(arrived)
		<-q.Context().Done()
		close(left)
	}))
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-arrived
		cancel()
	}()
	r.postCtx(ctx, "/v1/completions", brokenBody)
	<-left
	if e := r.entry(); e.Outcome != relay.OutcomeClientGone && e.Outcome != relay.OutcomeClientError {
		t.Errorf("entry %+v", e)
	}
	r.checkEngines()
}

// An instance that accepts no connections is neither queried twice nor blamed for a query.
func TestQuery_UnreachableEngineNotBlamed(t *testing.T) {
	t.Parallel()
	ln := testkit.Listen(t)
	// The local port of a connection refuses connections, and no other test can get it.
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", ln.Addr().String())
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	// On a slow machine, the query takes long. That must not cause a probe.
	r := startTuned(t, fakevllm.Plain, 0, 0, tuning{sched: noProbes})
	r.members.set(instanceAt(instance.Decode, conn.LocalAddr().String(), fakevllm.Plain))
	if a := r.post("/v1/completions", brokenBody); a.status != http.StatusBadRequest || r.rec.askOutcomes() != flow.AskFailed {
		t.Errorf("%d: %s", a.status, a.body)
	}
	r.noneTroubled()
	r.checkEngines()
}
