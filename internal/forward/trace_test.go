package forward_test

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/observe/tracing"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/testkit/collector"
)

const (
	clientTrace = "0af7651916cd43dd8448eb211c80319c"
	clientSpan  = "b7ad6b7169203331"
)

// traced starts a rig whose requests are traced.
func traced(t *testing.T, mode fakevllm.Mode, share float64) (*rig, *collector.Collector, *tracing.Tracer) {
	t.Helper()
	c := collector.Start(t)
	tracer, err := tracing.Open(t.Context(), tracing.Options{Endpoint: c.URL, Sample: &share, Version: "v", ID: "i", Log: quiet()})
	require.NoError(t, err)
	r := start(t, mode, 1, 1, func(o *forward.Options) { o.Tracer = tracer })
	return r, c, tracer
}

// lastTrace closes a tracer before the end of a request is recorded.
type lastTrace struct {
	forward.Recorder

	t      *testing.T
	tracer *tracing.Tracer
}

func (l lastTrace) Done(e *forward.Entry) {
	require.NoError(l.t, l.tracer.Close(context.Background()))
	l.Recorder.Done(e)
}

// The trace of a request has ended when the request is recorded.
func TestTraceEndsBeforeEntry(t *testing.T) {
	t.Parallel()
	c, all := collector.Start(t), 1.
	tracer, err := tracing.Open(t.Context(), tracing.Options{Endpoint: c.URL, Sample: &all, Version: "v", ID: "i", Log: quiet()})
	require.NoError(t, err)
	r := start(t, fakevllm.Plain, 1, 1, func(o *forward.Options) { o.Tracer, o.Recorder = tracer, lastTrace{o.Recorder, t, tracer} })
	r.post(chatPath, chatBody(true, ""))
	r.entry()
	assert.True(t, slices.ContainsFunc(c.Spans(), func(s collector.Span) bool { return s.Name == "POST "+chatPath }),
		"%d spans, and none of the request", len(c.Spans()))
}

// sentTo returns the one request that an engine got for the path.
func sentTo(t *testing.T, s *fakevllm.Server, path string) http.Header {
	t.Helper()
	var found []http.Header
	for _, req := range posted(s) {
		if req.Path == path {
			found = append(found, req.Header)
		}
	}
	require.Equal(t, 1, len(found), "%s got %d requests, want one", s.Address(), len(found))
	return found[0]
}

// A request is one trace with both legs in it, in every order of legs, and engines get the
// span that is the parent of theirs.
func TestTraceHasBothLegs(t *testing.T) {
	t.Parallel()
	for _, mode := range []fakevllm.Mode{fakevllm.NIXL, fakevllm.LMCache, fakevllm.MoRIIOWrite} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			r, c, tracer := traced(t, mode, 0) // the parent is sampled, which takes precedence
			a := r.post("/v1/chat/completions", chatBody(true, ""),
				"traceparent", "00-"+clientTrace+"-"+clientSpan+"-01", "tracestate", "vendor=1,other=2")
			a.require(t, http.StatusOK)
			r.entry()
			require.NoError(t, tracer.Close(t.Context()))
			byName := map[string]collector.Span{}
			for _, s := range c.Spans() {
				assert.Equal(t, clientTrace, s.Trace(), "%s is of the trace", s.Name)
				byName[s.Name] = s
			}
			root := byName["POST /v1/chat/completions"]
			if root.Span == nil || root.Parent() != clientSpan || root.Service() != "pdmesh-proxy" || root.Attribute("gen_ai.request.model") != model {
				t.Fatalf("the request's own span: %v of %v", root, byName)
			}
			for _, name := range []string{"pick prefill", "prefill", "pick decode", "decode", "kv transfer"} {
				s, ok := byName[name]
				if !ok && name == "kv transfer" && mode == fakevllm.MoRIIOWrite {
					continue // decode may answer first if both legs run at once
				}
				assert.True(t, ok && s.Parent() == root.ID(), "%s: %v, whose parent should be %s", name, s, root.ID())
			}
			e := byName["decode"].Events
			assert.True(t, len(e) == 1 && e[0].Name == "first token", "events of decode: %v", e)
			for name, engine := range map[string]*fakevllm.Server{"prefill": r.P[0], "decode": r.D[0]} {
				h := sentTo(t, engine, "/v1/chat/completions")
				assert.Equal(t, "00-"+clientTrace+"-"+byName[name].ID()+"-01", h.Get("Traceparent"), "%s got traceparent", name)
				assert.Equal(t, "vendor=1,other=2", h.Get("Tracestate"), "%s got tracestate", name)
				assert.Equal(t, engine.Address(), byName[name].Attribute("pd.instance"), "%s was on", name)
			}
		})
	}
}

// A trace shows the legs that failed, and never the prompt.
func TestTraceOfARetry(t *testing.T) {
	t.Parallel()
	r, c, tracer := traced(t, fakevllm.NIXL, 1)
	script(t, r.P[0], fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: http.StatusInternalServerError, Times: 1})
	a := r.post("/v1/chat/completions", `{"model":"`+model+`","messages":[{"role":"user","content":"THE-PROMPT"}],"stream":true,"max_tokens":4}`)
	a.require(t, http.StatusOK)
	r.entry()
	require.NoError(t, tracer.Close(t.Context()))
	var prefills []string
	for _, s := range c.Spans() {
		text := protojson.Format(s.Span)
		assert.NotContains(t, text, "THE-PROMPT", "the prompt is in %s", text)
		if s.Name == "prefill" {
			prefills = append(prefills, s.Attribute("error.type"))
		}
	}
	if slices.Sort(prefills); !slices.Equal(prefills, []string{"", "status_5xx"}) {
		t.Errorf("prefill legs: %q", prefills)
	}
}

// The span of a failed leg has the same class as metrics and the access log.
func TestTrace_ClassOfLeg(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		class, path, body string
		role              instance.Role
		fault             fakevllm.Fault
	}{
		{"broke_off", chatPath, chatBody(true, ""), instance.Decode, fakevllm.Fault{Kind: fakevllm.FaultReset, Tokens: 3}},
		{"error_event", chatPath, chatBody(true, ""), instance.Decode, fakevllm.Fault{Kind: fakevllm.FaultErrorEvent, Tokens: 3}},
		{"aborted", chatPath, chatBody(true, ""), instance.Decode, fakevllm.Fault{Kind: fakevllm.FaultAbort, Tokens: 3}},
		{"status_4xx", "/v1/embeddings", `{"model":"m","input":"a"}`, instance.Decode, fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: http.StatusNotFound, Body: `{"detail":"Not Found"}`}},
		{"our_edit", chatPath, chatBody(true, offeredTools+`,"tool_choice":"required"`), instance.Prefill, fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: http.StatusBadRequest}},
	} {
		t.Run(tc.class, func(t *testing.T) {
			t.Parallel()
			r, c, tracer := traced(t, fakevllm.NIXL, 1)
			tc.fault.Times, tc.fault.Path = 1, tc.path
			script(t, r.engines(tc.role)[0], tc.fault)
			r.post(tc.path, tc.body)
			r.entry()
			require.NoError(t, tracer.Close(t.Context()))
			want := []string{string(tc.role) + "/" + tc.class}
			assert.True(t, slices.Equal(r.rec.failed, want), "failed legs %q, want %q", r.rec.failed, want)
			class := ""
			for _, span := range c.Spans() {
				if span.Name == string(tc.role) && span.Attribute("error.type") != "" {
					class = span.Attribute("error.type")
				}
			}
			assert.Equal(t, tc.class, class, "the span")
		})
	}
}

// A request that is not sampled creates no span, and engines get the flag. They get a client's own
// traceparent unchanged.
func TestUnsampledTrace(t *testing.T) {
	t.Parallel()
	r, c, tracer := traced(t, fakevllm.NIXL, 0)
	refused := "00-" + clientTrace + "-" + clientSpan + "-00"
	for i, sent := range [][]string{nil, {"traceparent", refused, "tracestate", "vendor=1"}, {"traceparent", "nonsense", "tracestate", "vendor=1"}} {
		r.P[0].ForgetRequests()
		r.D[0].ForgetRequests()
		r.post("/v1/chat/completions", chatBody(true, ""), sent...).require(t, http.StatusOK)
		r.entry()
		p, d := sentTo(t, r.P[0], "/v1/chat/completions"), sentTo(t, r.D[0], "/v1/chat/completions")
		got := p.Get("Traceparent")
		assert.True(t, got == d.Get("Traceparent") && len(got) == 55 && strings.HasSuffix(got, "-00"),
			"%d: %q and %q", i, got, d.Get("Traceparent"))
		if own := i == 1; own != (got == refused) || own != (p.Get("Tracestate") == "vendor=1") {
			t.Errorf("%d: %q with %q", i, got, p.Get("Tracestate"))
		}
	}
	require.NoError(t, tracer.Close(t.Context()))
	spans := c.Spans()
	assert.Empty(t, spans, "%d spans", len(spans))
}

// Without tracing, a client's traceparent is passed on unchanged.
func TestTracingOff(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.NIXL, 1, 1, nil)
	own := "00-" + clientTrace + "-" + clientSpan + "-01"
	a := r.post("/v1/chat/completions", chatBody(true, ""), "traceparent", own, "tracestate", "vendor=1")
	require.Equal(t, http.StatusOK, a.status, string(a.body))
	for _, s := range []*fakevllm.Server{r.P[0], r.D[0]} {
		h := sentTo(t, s, "/v1/chat/completions")
		assert.True(t, h.Get("Traceparent") == own && h.Get("Tracestate") == "vendor=1", "%v", h)
	}
}
