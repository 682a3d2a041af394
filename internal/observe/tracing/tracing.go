package tracing

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// The headers of W3C Trace Context, in Go's spelling.
const (
	traceparent = "Traceparent"
	tracestate  = "Tracestate"
)

// Tracer makes the traces of requests.
type Tracer struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
	// choose reports whether a request without a parent is traced; nil leaves that to the SDK, which
	// uses much more CPU if few requests are traced.
	choose func() bool
	queue  *queue // nil in tests
}

// share returns the sampler for a share of the requests without a parent. choose selects them, so that
// the SDK handles only the sampled ones.
func share(of float64) (choose func() bool, s sdktrace.Sampler) {
	return func() bool { return rand.Float64() < of }, sdktrace.ParentBased(sdktrace.AlwaysSample())
}

func newTracer(p *sdktrace.TracerProvider, choose func() bool) *Tracer {
	return &Tracer{provider: p, tracer: p.Tracer("github.com/pdmesh/pdmesh/internal/observe/tracing"), choose: choose}
}

// Dropped returns the number of spans that did not reach the collector.
func (t *Tracer) Dropped() uint64 {
	if t == nil {
		return 0
	}
	return t.queue.dropped.Load()
}

// Close sends the remaining spans.
func (t *Tracer) Close(ctx context.Context) error {
	if t == nil {
		return nil
	}
	return t.provider.Shutdown(ctx)
}

// Request is the trace of one request. It is safe for concurrent use.
type Request struct {
	// of is nil if the request is not sampled, which is the common case. parent then carries
	// that decision to the engines, which would otherwise sample on their own.
	of     *sampledRequest
	parent [1]string
	// dropState reports whether the client's tracestate, sent without a traceparent, is dropped.
	dropState bool
}

// ID returns the id of the trace that a request with this header belongs to, in hexadecimal:
// that of the proxy, or of the client's traceparent if the proxy does not trace the request.
// It is "" if there is none. It may be called on nil.
func (r *Request) ID(h http.Header) string {
	if r.Sampled() {
		return r.of.span.SpanContext().TraceID().String()
	}
	if len(h[traceparent]) == 0 {
		return ""
	}
	ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.HeaderCarrier(h))
	if c := trace.SpanContextFromContext(ctx); c.IsValid() {
		return c.TraceID().String()
	}
	return ""
}

// sampledRequest is a request that is traced.
type sampledRequest struct {
	tracer              trace.Tracer
	span                trace.Span
	ctx                 context.Context //nolint:containedctx // carries span, as the SDK wants it
	method, route, path string
	secure              bool
}

// Begin starts the trace of a request. It returns nil if tracing is off, or if a request with a traceparent
// is not sampled; the engines then receive the client's header unchanged.
func (t *Tracer) Begin(r *http.Request, route string, start time.Time) *Request {
	if t == nil {
		return nil
	}
	ctx, parent := r.Context(), false
	if len(r.Header[traceparent]) > 0 {
		ctx = propagation.TraceContext{}.Extract(ctx, propagation.HeaderCarrier(r.Header))
		parent = trace.SpanContextFromContext(ctx).IsValid()
	}
	if t.choose != nil && !parent && !t.choose() {
		return notSampled(r, randomParent())
	}
	ctx, span := t.tracer.Start(ctx, r.Method+" "+route, trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(start))
	switch {
	case span.IsRecording():
		return &Request{of: &sampledRequest{
			tracer: t.tracer, span: span, ctx: ctx, method: r.Method, route: route, path: r.URL.Path, secure: r.TLS != nil,
		}}
	case parent:
		return nil
	}
	return notSampled(r, header(span.SpanContext()))
}

func notSampled(r *http.Request, parent string) *Request {
	return &Request{parent: [1]string{parent}, dropState: len(r.Header[tracestate]) > 0}
}

// randomParent returns the traceparent of a span that is not recorded.
func randomParent() string {
	var c trace.SpanContextConfig
	binary.BigEndian.PutUint64(c.TraceID[:8], rand.Uint64())
	binary.BigEndian.PutUint64(c.TraceID[8:], rand.Uint64()|1) // zero is none
	binary.BigEndian.PutUint64(c.SpanID[:], rand.Uint64()|1)
	return header(trace.NewSpanContext(c))
}

// operation returns the gen_ai.operation.name of a route in the semantic conventions; "" for none.
func operation(route string) string {
	switch route {
	case "/v1/chat/completions", "/v1/responses", "/v1/messages":
		return "chat"
	case "/v1/completions", "/inference/v1/generate":
		return "text_completion"
	case "/v1/embeddings":
		return "embeddings"
	}
	return ""
}

// header returns the traceparent of a span.
func header(c trace.SpanContext) string {
	id, span, sampled := c.TraceID(), c.SpanID(), "-00"
	if c.IsSampled() {
		sampled = "-01"
	}
	b := append(make([]byte, 0, 55), "00-"...)
	b = append(hex.AppendEncode(b, id[:]), '-')
	return string(append(hex.AppendEncode(b, span[:]), sampled...))
}

// maxWritten bounds text of a client, such as a model's name, in bytes.
const maxWritten = 200

// written returns text of a client in the form for a trace: bounded, because spans wait in memory for
// their collector, and in UTF-8, because a batch with an invalid span cannot be sent.
func written(s string) string {
	if len(s) <= maxWritten && utf8.ValidString(s) {
		return s
	}
	return instance.Printable(s, maxWritten)
}

// Sampled reports whether the request is sampled: it has spans, and End must be called.
func (r *Request) Sampled() bool { return r != nil && r.of != nil }

// Outcome is the result of a request.
type Outcome struct {
	ID, Model, Outcome, Failure, DecodeOnly string
	Status, Failed                          int
	Stream                                  bool
	// Handed and First are the times of prefill's response and of the first content sent to
	// the client; zero if there was none. The KV transfer is between them.
	Handed, First time.Time
}

// End ends the trace.
func (r *Request) End(o *Outcome) {
	if !r.Sampled() {
		return
	}
	c := r.of
	if !o.Handed.IsZero() && o.First.After(o.Handed) {
		_, s := c.tracer.Start(c.ctx, "kv transfer", trace.WithTimestamp(o.Handed))
		s.End(trace.WithTimestamp(o.First))
	}
	scheme := "http"
	if c.secure {
		scheme = "https"
	}
	c.span.SetAttributes(attribute.String("http.request.method", c.method), attribute.String("http.route", c.route),
		attribute.String("url.path", written(c.path)), attribute.String("url.scheme", scheme),
		attribute.Int("http.response.status_code", o.Status), attribute.String("pd.request.id", o.ID),
		attribute.String("pd.outcome", o.Outcome), attribute.Int("pd.legs.failed", o.Failed), attribute.Bool("pd.stream", o.Stream))
	for _, a := range []attribute.KeyValue{
		attribute.String("gen_ai.operation.name", operation(c.route)), attribute.String("gen_ai.request.model", written(o.Model)),
		attribute.String("pd.decode_only", o.DecodeOnly), attribute.String("error.type", o.Failure),
	} {
		if a.Value.AsString() != "" {
			c.span.SetAttributes(a)
		}
	}
	if o.Status >= 500 || o.Outcome == "broken" {
		c.span.SetStatus(codes.Error, o.Outcome)
	}
	c.span.End()
}

// Span is a part of a request's trace. It is safe for concurrent use.
type Span struct{ span trace.Span }

func (c *sampledRequest) start(name string, o ...trace.SpanStartOption) *Span {
	_, s := c.tracer.Start(c.ctx, name, o...)
	return &Span{s}
}

// Pick starts the span of the choice of an instance in a role.
func (r *Request) Pick(role string) *Span {
	if !r.Sampled() {
		return nil
	}
	return r.of.start("pick "+role, trace.WithAttributes(attribute.String("pd.role", role)))
}

// Picked ends the span of Pick. err is not nil if no instance was picked.
func (s *Span) Picked(err error, address, policy string) {
	if s == nil {
		return
	}
	if err != nil {
		s.span.SetStatus(codes.Error, err.Error())
	} else {
		s.span.SetAttributes(attribute.String("pd.instance", address), attribute.String("pd.policy", policy))
	}
	s.span.End()
}

// Leg starts the span of a request to an engine.
func (r *Request) Leg(role, address, connector string, start time.Time) *Span {
	if !r.Sampled() {
		return nil
	}
	host, port, _ := net.SplitHostPort(address)
	n, _ := strconv.Atoi(port)
	return r.of.start(role, trace.WithSpanKind(trace.SpanKindClient), trace.WithTimestamp(start),
		trace.WithAttributes(attribute.String("pd.role", role), attribute.String("pd.instance", address),
			attribute.String("pd.connector", connector), attribute.String("server.address", host), attribute.Int("server.port", n)))
}

// Inject sets the parent of the engine's spans in the header of a leg. On nil, the client's header
// stays. s is the span of the leg, or nil.
func (r *Request) Inject(s *Span, h http.Header) {
	switch {
	case r == nil:
	case r.of == nil:
		h[traceparent] = r.parent[:]
		if r.dropState {
			delete(h, tracestate)
		}
	default:
		of := r.of.span.SpanContext()
		if s != nil {
			of = s.span.SpanContext()
		}
		h[traceparent] = []string{header(of)}
		if of.TraceState().Len() == 0 { // otherwise the client's tracestate stays
			delete(h, tracestate)
		}
	}
}

// Sent records the method and the path of the request. target is the path, which may have a query.
func (s *Span) Sent(method, target string) {
	if s != nil {
		path, _, _ := strings.Cut(target, "?")
		s.span.SetAttributes(attribute.String("http.request.method", method), attribute.String("url.path", written(path)))
	}
}

// Answered records the status of the engine's answer.
func (s *Span) Answered(status int) {
	if s != nil {
		s.span.SetAttributes(attribute.Int("http.response.status_code", status))
	}
}

// First records the arrival of the first token.
func (s *Span) First() {
	if s != nil {
		s.span.AddEvent("first token")
	}
}

// Failed records the class of a failure; the last one counts.
func (s *Span) Failed(class string) {
	if s != nil {
		s.span.SetAttributes(attribute.String("error.type", class))
		s.span.SetStatus(codes.Error, class)
	}
}

// End ends the span. Further calls have no effect.
func (s *Span) End() {
	if s != nil {
		s.span.End()
	}
}
