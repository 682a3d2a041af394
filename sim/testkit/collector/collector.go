// Package collector is where tests send traces: it takes OTLP over HTTP, in protobuf as
// the specification has it, and keeps every span.
package collector

import (
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// Span is a span as it came.
type Span struct {
	*tracepb.Span
	Resource []*commonpb.KeyValue
}

// Trace returns the ID of the trace in hexadecimal.
func (s Span) Trace() string { return hex.EncodeToString(s.TraceId) }

// ID returns the ID of the span in hexadecimal.
func (s Span) ID() string { return hex.EncodeToString(s.SpanId) }

// Parent returns the ID of the parent in hexadecimal; "" for a root.
func (s Span) Parent() string { return hex.EncodeToString(s.ParentSpanId) }

// Attribute returns the text of an attribute, "" if it has none of that name.
func (s Span) Attribute(name string) string { return attribute(s.Attributes, name) }

func attribute(list []*commonpb.KeyValue, name string) string {
	for _, a := range list {
		if a.Key == name {
			return a.Value.GetStringValue()
		}
	}
	return ""
}

// Service is the name of the resource.
func (s Span) Service() string { return attribute(s.Resource, "service.name") }

// Collector keeps what it gets.
type Collector struct {
	URL string

	mu    sync.Mutex // guards spans
	spans []Span
}

// Start runs a collector until the test ends.
func Start(t testing.TB) *Collector {
	t.Helper()
	c := &Collector{}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/traces", func(w http.ResponseWriter, r *http.Request) {
		if err := c.take(r); err != nil {
			t.Errorf("traces: %v", err)
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/x-protobuf")
		answer, _ := proto.Marshal(&collectorpb.ExportTraceServiceResponse{})
		_, _ = w.Write(answer)
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	c.URL = server.URL
	return c
}

func (c *Collector) take(r *http.Request) error {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	var sent collectorpb.ExportTraceServiceRequest
	if err := proto.Unmarshal(b, &sent); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, of := range sent.ResourceSpans {
		for _, scope := range of.ScopeSpans {
			for _, s := range scope.Spans {
				c.spans = append(c.spans, Span{s, of.Resource.GetAttributes()})
			}
		}
	}
	return nil
}

// Spans are all that have come.
func (c *Collector) Spans() []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]Span(nil), c.spans...)
}
