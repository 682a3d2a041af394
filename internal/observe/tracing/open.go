package tracing

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"golang.org/x/time/rate"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// DefaultSample is the share of the requests without a parent that are traced.
const DefaultSample = 0.01

// Options configure Open. The SDK reads the standard variables OTEL_... for options that are not set.
type Options struct {
	Endpoint string   // URL of a collector; "" = from the variables
	Sample   *float64 // nil = from the variables, or DefaultSample
	Version  string   // of this program
	ID       string   // of this process
	Log      logrus.FieldLogger
}

// Open returns a tracer that sends to the collector, nil if none is configured.
func Open(ctx context.Context, o Options) (*Tracer, error) {
	named := cmp.Or(o.Endpoint, os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT"))
	if named == "" || strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") {
		return nil, nil //nolint:nilnil // tracing is off
	}
	exporter, err := newExporter(ctx, o.Endpoint)
	if err != nil {
		return nil, fmt.Errorf("traces to %s: %w", named, err)
	}
	// WithFromEnv is last, so that the variables take precedence.
	about, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithHost(), resource.WithAttributes(
		attribute.String("service.name", "pdmesh-proxy"), attribute.String("service.version", o.Version),
		attribute.String("service.instance.id", o.ID)), resource.WithFromEnv())
	if err != nil && !errors.Is(err, resource.ErrPartialResource) {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	// Most errors mean that the collector is unreachable. Others contain its answer, up to 4 MiB.
	minute := rate.Sometimes{Interval: time.Minute}
	report := func(err error) {
		minute.Do(func() { o.Log.WithField("error", instance.Printable(err.Error(), 500)).Warn("traces dropped") })
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(report))
	q := newQueue(exporter, report)
	settings := []sdktrace.TracerProviderOption{sdktrace.WithSpanProcessor(q), sdktrace.WithResource(about)}
	var choose func() bool
	if o.Sample != nil || os.Getenv("OTEL_TRACES_SAMPLER") == "" {
		of := DefaultSample
		if o.Sample != nil {
			of = *o.Sample
		}
		var s sdktrace.Sampler
		choose, s = share(of)
		settings = append(settings, sdktrace.WithSampler(s))
	}
	t := newTracer(sdktrace.NewTracerProvider(settings...), choose)
	t.queue = q
	return t, nil
}

// queue wraps the SDK's batch processor, which drops spans silently while its queue is full. queue
// drops them before that, counts them and reports it.
type queue struct {
	sdktrace.SpanProcessor

	waiting atomic.Int64 // spans that are not exported yet
	dropped atomic.Uint64
	limit   int64
	report  func(error)
}

func newQueue(e sdktrace.SpanExporter, report func(error)) *queue {
	limit := positive("OTEL_BSP_MAX_QUEUE_SIZE", sdktrace.DefaultMaxQueueSize)
	batch := min(limit, positive("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", sdktrace.DefaultMaxExportBatchSize))
	q := &queue{limit: int64(limit), report: report}
	q.SpanProcessor = sdktrace.NewBatchSpanProcessor(exporter{e, q}, sdktrace.WithMaxQueueSize(limit), sdktrace.WithMaxExportBatchSize(batch))
	return q
}

// positive returns the number in a variable, or usual if it is not a number above 0. The SDK panics if one of
// its sizes is negative.
func positive(name string, usual int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil && n > 0 {
		return n
	}
	return usual
}

// OnEnd implements sdktrace.SpanProcessor.
func (q *queue) OnEnd(s sdktrace.ReadOnlySpan) {
	if q.waiting.Add(1) > q.limit {
		q.waiting.Add(-1)
		q.dropped.Add(1)
		q.report(fmt.Errorf("the queue of %d spans is full: the collector is too slow", q.limit))
		return
	}
	q.SpanProcessor.OnEnd(s)
}

// exporter exports the spans of a queue.
type exporter struct {
	sdktrace.SpanExporter
	q *queue
}

// ExportSpans implements sdktrace.SpanExporter.
func (e exporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	defer e.q.waiting.Add(-int64(len(spans)))
	err := e.SpanExporter.ExportSpans(ctx, spans)
	if err != nil {
		e.q.dropped.Add(uint64(len(spans)))
	}
	return err
}

// tracesPath is the path at which a collector accepts traces over HTTP.
const tracesPath = "/v1/traces"

func newExporter(ctx context.Context, endpoint string) (*otlptrace.Exporter, error) {
	protocol := cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), os.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL"), "http/protobuf")
	switch protocol {
	case "http/protobuf":
		var to []otlptracehttp.Option
		if endpoint != "" {
			if !strings.HasSuffix(endpoint, tracesPath) {
				endpoint = strings.TrimRight(endpoint, "/") + tracesPath
			}
			to = append(to, otlptracehttp.WithEndpointURL(endpoint))
		}
		return otlptracehttp.New(ctx, to...)
	case "grpc":
		var to []otlptracegrpc.Option
		if endpoint != "" {
			to = append(to, otlptracegrpc.WithEndpointURL(endpoint))
		}
		return otlptracegrpc.New(ctx, to...)
	}
	return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL %q is not known; use http/protobuf or grpc", protocol)
}
