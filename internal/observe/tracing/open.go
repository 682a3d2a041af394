package tracing

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
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
	settings := []sdktrace.TracerProviderOption{sdktrace.WithBatcher(exporter), sdktrace.WithResource(about)}
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
	// Most errors mean that the collector is unreachable. Others contain its answer, up to 4 MiB.
	minute := rate.Sometimes{Interval: time.Minute}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		minute.Do(func() { o.Log.WithField("error", instance.Printable(err.Error(), 500)).Warn("traces dropped") })
	}))
	return newTracer(sdktrace.NewTracerProvider(settings...), choose), nil
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
