package tracing

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

// Disabled tracing, and a request that is not sampled, do not allocate.
func TestTracingOff_NoAllocations(t *testing.T) { //nolint:paralleltest // it counts allocations
	var tracer *Tracer
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/completions", nil)
	now, h, err := time.Now(), http.Header{}, errors.New("none")
	if n := testing.AllocsPerRun(100, func() {
		q := tracer.Begin(r, "/v1/completions", now)
		p := q.Pick("prefill")
		p.Picked(err, "", "")
		l := q.Leg("prefill", "10.0.0.1:8000", "nixl", now)
		q.Inject(l, h)
		l.Sent(http.MethodPost, "/v1/completions")
		l.Answered(http.StatusOK)
		l.First()
		l.Failed("lost")
		l.End()
		q.End(&Outcome{})
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
	if err := tracer.Close(t.Context()); err != nil || len(h) > 0 {
		t.Error(err, h)
	}
}

func TestOpenWithoutACollector(t *testing.T) {
	for _, name := range []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"} {
		t.Setenv(name, "")
	}
	if tracer, err := Open(t.Context(), Options{}); tracer != nil || err != nil {
		t.Error(tracer, err)
	}
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "carrier/pigeon")
	_, err := Open(t.Context(), Options{})
	assert.Error(t, err, "a protocol that there is not")
	for _, protocol := range []string{"grpc", "http/protobuf"} {
		t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
		tracer, err := Open(t.Context(), Options{})
		if tracer == nil || err != nil {
			t.Error(protocol, tracer, err)
		}
		_ = tracer.Close(t.Context())
	}
	for _, size := range []string{"-1", "0", "many"} { // the defaults apply
		t.Setenv("OTEL_BSP_MAX_QUEUE_SIZE", size)
		t.Setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", size)
		tracer, err := Open(t.Context(), Options{})
		require.NoError(t, err)
		require.NoError(t, tracer.Close(t.Context()))
	}
	t.Setenv("OTEL_SDK_DISABLED", "true")
	if tracer, err := Open(t.Context(), Options{}); tracer != nil || err != nil {
		t.Error(tracer, err)
	}
}

// The share applies to requests without a parent.
func TestSampling(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewInMemoryExporter()
	choose, sampler := share(.25)
	tracer := newTracer(sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans), sdktrace.WithSampler(sampler)), choose)
	const requests = 4000
	for range requests {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/completions", nil)
		tracer.Begin(r, "/v1/completions", time.Now()).End(&Outcome{Status: http.StatusOK})
	}
	n := len(spans.GetSpans())
	assert.True(t, n >= requests/5 && n <= requests*3/10, "%d of %d requests were traced", n, requests)
}

// nowhere is an exporter that drops its spans.
type nowhere struct{}

func (nowhere) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error { return nil }
func (nowhere) Shutdown(context.Context) error                             { return nil }

// pair traces a request through a pair.
func pair(tracer *Tracer, r *http.Request, now time.Time, h http.Header) {
	q := tracer.Begin(r, "/v1/completions", now)
	for _, role := range []string{"prefill", "decode"} {
		q.Pick(role).Picked(nil, "10.0.0.1:8000", "prefix")
		l := q.Leg(role, "10.0.0.1:8000", "nixl", now)
		q.Inject(l, h)
		l.Sent(http.MethodPost, "/v1/completions")
		l.Answered(http.StatusOK)
		l.End()
	}
	q.End(&Outcome{ID: "id", Model: "m", Outcome: "ok", Status: http.StatusOK, Stream: true})
}

// A request that is not sampled allocates only its Request and the header with the decision for the engines.
func TestNotSampled_FewAllocations(t *testing.T) { //nolint:paralleltest // it counts allocations
	choose, sampler := share(0)
	tracer := newTracer(sdktrace.NewTracerProvider(sdktrace.WithBatcher(nowhere{}), sdktrace.WithSampler(sampler)), choose)
	defer func() { _ = tracer.Close(t.Context()) }()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/completions", nil)
	now, h := time.Now(), http.Header{}
	n := testing.AllocsPerRun(100, func() { pair(tracer, r, now, h) })
	assert.True(t, n <= 2, "%v allocations", n)
}
