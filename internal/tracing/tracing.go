package tracing

import (
	"context"
	"encoding/binary"
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
	// choose tells whether a request without a parent is traced; nil leaves it to the SDK,
	// which is dear where nearly none are.
	choose func() bool
}

// share makes the sampler of a share of the requests without a parent: the SDK is asked
// about those only that were chosen.
func share(of float64) (choose func() bool, s sdktrace.Sampler) {
	return func() bool { return rand.Float64() < of }, sdktrace.ParentBased(sdktrace.AlwaysSample())
}

func newTracer(p *sdktrace.TracerProvider, choose func() bool) *Tracer {
	return &Tracer{provider: p, tracer: p.Tracer("github.com/pdmesh/pdmesh/internal/tracing"), choose: choose}
}

// Close sends what is left.
func (t *Tracer) Close(ctx context.Context) error {
	if t == nil {
		return nil
	}
	return t.provider.Shutdown(ctx)
}

// Request is the trace of one request. It is safe for concurrent use.
type Request struct {
	tracer trace.Tracer
	// span is that of the request, nil if it was not chosen: then parent tells engines so,
	// which would choose for themselves.
	span   trace.Span
	ctx    context.Context //nolint:containedctx // carries span, as the SDK wants it
	parent [1]string
}

// Begin starts the trace of a request. It gives nil if there is nothing to do: tracing
// is off, or the client has said that its trace is not wanted, which reaches the engines
// in its own header.
func (t *Tracer) Begin(r *http.Request, route string, start time.Time) *Request {
	if t == nil {
		return nil
	}
	ctx := r.Context()
	if len(r.Header[traceparent]) > 0 {
		ctx = propagation.TraceContext{}.Extract(ctx, propagation.HeaderCarrier(r.Header))
	}
	of := trace.SpanContextFromContext(ctx)
	if t.choose != nil && !of.IsValid() && !t.choose() {
		return notChosen(randomContext())
	}
	ctx, span := t.tracer.Start(ctx, r.Method+" "+route, trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(start))
	switch {
	case span.IsRecording():
		scheme := "http"
		if r.TLS != nil {
			scheme = "https"
		}
		span.SetAttributes(attribute.String("http.request.method", r.Method), attribute.String("http.route", route),
			attribute.String("url.path", written(r.URL.Path)), attribute.String("url.scheme", scheme))
		if name := operation(route); name != "" {
			span.SetAttributes(attribute.String("gen_ai.operation.name", name))
		}
		return &Request{tracer: t.tracer, span: span, ctx: ctx}
	case of.IsValid():
		return nil
	}
	return notChosen(span.SpanContext())
}

func notChosen(c trace.SpanContext) *Request { return &Request{parent: [1]string{header(c)}} }

// randomContext is that of a span which nobody makes.
func randomContext() trace.SpanContext {
	var id trace.TraceID
	var span trace.SpanID
	binary.NativeEndian.PutUint64(id[:8], rand.Uint64())
	binary.NativeEndian.PutUint64(id[8:], rand.Uint64()|1) // zero is none
	binary.NativeEndian.PutUint64(span[:], rand.Uint64()|1)
	return trace.NewSpanContext(trace.SpanContextConfig{TraceID: id, SpanID: span})
}

// operation is what the semantic conventions call what a route does.
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

// header is the traceparent of a span.
func header(c trace.SpanContext) string {
	b := make([]byte, 0, 55)
	b = append(b, "00-"...)
	id, span := c.TraceID(), c.SpanID()
	b = appendHex(b, id[:])
	b = append(b, '-')
	b = appendHex(b, span[:])
	if c.IsSampled() {
		return string(append(b, "-01"...))
	}
	return string(append(b, "-00"...))
}

func appendHex(b, of []byte) []byte {
	const digits = "0123456789abcdef"
	for _, c := range of {
		b = append(b, digits[c>>4], digits[c&15])
	}
	return b
}

// maxWritten bounds what a client may have written, such as a model's name.
const maxWritten = 200

// written is what a client has written as a trace may hold it: spans wait in memory for
// their collector, and one that is not UTF-8 cannot be sent, nor what would go with it.
func written(s string) string {
	if len(s) <= maxWritten && utf8.ValidString(s) {
		return s
	}
	return instance.Printable(s, maxWritten)
}

// chosen tells that there are spans to be made.
func (r *Request) chosen() bool { return r != nil && r.span != nil }

// Outcome is what became of a request.
type Outcome struct {
	ID, Model, Outcome, Failure, Alone string
	Status, Failed                     int
	Stream                             bool
	// Handed and First are when prefill had answered and when the first content went to
	// the client; zero for none. Between them is the hand-over.
	Handed, First time.Time
}

// End ends the trace.
func (r *Request) End(o *Outcome) {
	if !r.chosen() {
		return
	}
	if !o.Handed.IsZero() && o.First.After(o.Handed) {
		_, s := r.tracer.Start(r.ctx, "hand-over", trace.WithTimestamp(o.Handed))
		s.End(trace.WithTimestamp(o.First))
	}
	r.span.SetAttributes(attribute.Int("http.response.status_code", o.Status), attribute.String("pd.request.id", o.ID),
		attribute.String("pd.outcome", o.Outcome), attribute.Int("pd.legs.failed", o.Failed), attribute.Bool("pd.stream", o.Stream))
	if o.Model != "" {
		r.span.SetAttributes(attribute.String("gen_ai.request.model", written(o.Model)))
	}
	if o.Alone != "" {
		r.span.SetAttributes(attribute.String("pd.alone", o.Alone))
	}
	if o.Failure != "" {
		r.span.SetAttributes(attribute.String("error.type", o.Failure))
	}
	if o.Status >= 500 || o.Outcome == "broken" {
		r.span.SetStatus(codes.Error, o.Outcome)
	}
	r.span.End()
}

// Span is a part of a request's trace.
type Span struct{ span trace.Span }

// Pick starts the choice of an instance in a role.
func (r *Request) Pick(role string) *Span {
	if !r.chosen() {
		return nil
	}
	_, s := r.tracer.Start(r.ctx, "pick "+role, trace.WithAttributes(attribute.String("pd.role", role)))
	return &Span{s}
}

// Picked ends the choice. err tells that there was none.
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

// Leg starts a request to an engine.
func (r *Request) Leg(role, address, connector string, start time.Time) *Span {
	if !r.chosen() {
		return nil
	}
	host, port, _ := net.SplitHostPort(address)
	n, _ := strconv.Atoi(port)
	_, s := r.tracer.Start(r.ctx, role, trace.WithSpanKind(trace.SpanKindClient), trace.WithTimestamp(start), trace.WithAttributes(
		attribute.String("pd.role", role), attribute.String("pd.instance", address), attribute.String("pd.connector", connector),
		attribute.String("server.address", host), attribute.Int("server.port", n)))
	return &Span{s}
}

// Inject tells an engine in the header of its leg which span its own belong to. Without
// a trace the client's own header stands there. s is the leg's, or nil.
func (r *Request) Inject(s *Span, h http.Header) {
	switch {
	case r == nil:
	case r.span == nil:
		h[traceparent] = r.parent[:]
		delete(h, tracestate)
	default:
		of := r.span.SpanContext()
		if s != nil {
			of = s.span.SpanContext()
		}
		h[traceparent] = []string{header(of)}
		if of.TraceState().Len() == 0 { // else it stands there as it came
			delete(h, tracestate)
		}
	}
}

// Sent notes what was asked of the engine. target is the path, which may have a query.
func (s *Span) Sent(method, target string) {
	if s != nil {
		path, _, _ := strings.Cut(target, "?")
		s.span.SetAttributes(attribute.String("http.request.method", method), attribute.String("url.path", written(path)))
	}
}

// Answered notes the status of the engine's answer.
func (s *Span) Answered(status int) {
	if s != nil {
		s.span.SetAttributes(attribute.Int("http.response.status_code", status))
	}
}

// First notes that the first token has come.
func (s *Span) First() {
	if s != nil {
		s.span.AddEvent("first token")
	}
}

// Failed notes what the leg was taken for.
func (s *Span) Failed(class string) {
	if s != nil {
		s.span.SetAttributes(attribute.String("error.type", class))
		s.span.SetStatus(codes.Error, class)
	}
}

// End ends the span. More calls do no harm.
func (s *Span) End() {
	if s != nil {
		s.span.End()
	}
}
