package tracing

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/collector"
)

// openTo returns a tracer that samples every request and sends to a collector. Its log goes to
// out, and until the next call also the errors of later tests: the SDK has one log per process.
func openTo(t *testing.T, url string, out io.Writer) *Tracer {
	t.Helper()
	log, all := logrus.New(), 1.
	log.SetOutput(out)
	tracer, err := Open(t.Context(), Options{Endpoint: url, Sample: &all, Version: "v", ID: "i", Log: log})
	require.NoError(t, err)
	return tracer
}

// Client input is truncated in a trace and always valid UTF-8: otherwise, the
// spans that are sent with it would be lost. A query string is not included.
func TestSpan_ClientTextBounded(t *testing.T) {
	t.Parallel()
	c := collector.Start(t)
	tracer := openTo(t, c.URL, io.Discard)
	const route = "/v1/responses/{response_id}"
	path := "/v1/responses/\xff" + strings.Repeat("i", 1<<12)
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
	r.URL.Path = path
	q := tracer.Begin(r, route, time.Now())
	l := q.Leg("decode", "10.0.0.1:8000", "nixl", time.Now())
	l.Sent(http.MethodGet, path+"?key=secret")
	l.End()
	q.End(&Outcome{Model: strings.Repeat("m", 1<<20), Status: http.StatusOK})
	require.NoError(t, tracer.Close(t.Context()))
	spans := c.Spans()
	require.Len(t, spans, 2, "spans have come, want 2")
	for _, s := range spans {
		for _, a := range s.Attributes {
			if text := a.Value.GetStringValue(); len(text) > 300 || strings.Contains(text, "secret") {
				t.Errorf("%s of %s has %d bytes: %.300s", a.Key, s.Name, len(text), text)
			}
		}
		got := s.Attribute("url.path")
		assert.True(t, strings.HasPrefix(got, `/v1/responses/\xff`), "url.path of %s is %q", s.Name, got)
	}
}

// A collector that accepts a request and never answers delays nothing: neither traced
// requests, even if more than fit in the queue, nor the end of the program. The log
// reports that spans are dropped.
func TestCollector_Hangs(t *testing.T) {
	t.Parallel()
	asked, release := make(chan struct{}, 100), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		asked <- struct{}{}
		<-release
	}))
	t.Cleanup(func() { close(release); server.Close() })
	var lines testkit.Buffer
	tracer := openTo(t, server.URL, &lines)
	request := func() {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/completions", nil)
		tracer.Begin(r, "/v1/completions", time.Now()).End(&Outcome{Status: http.StatusOK})
	}
	for range 10_000 {
		request()
	}
	<-asked
	for range 10_000 {
		request()
	}
	if got := lines.String(); strings.Count(got, "traces dropped") != 1 || !strings.Contains(got, "the queue of 2048 spans is full") {
		t.Errorf("log: %.500s", got)
	}
	if n := tracer.Dropped(); n < 20_000-2048 || n > 20_000 {
		t.Errorf("%d of 20000 spans were dropped, which is not what exceeds a queue of 2048", n)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	assert.ErrorIs(t, tracer.Close(ctx), context.DeadlineExceeded, "want the end of the wait")
}

// The log has the start of the answer of a collector that refuses traces.
func TestCollector_LongRefusal(t *testing.T) { //nolint:paralleltest // the log is that of the process
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "quota exceeded "+strings.Repeat("x", 1<<20), http.StatusInternalServerError)
	}))
	t.Cleanup(server.Close)
	var lines testkit.Buffer
	tracer := openTo(t, server.URL, &lines)
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/completions", nil)
	tracer.Begin(r, "/v1/completions", time.Now()).End(&Outcome{Status: http.StatusOK})
	require.NoError(t, tracer.Close(t.Context()))
	assert.EqualValues(t, 1, tracer.Dropped(), "spans were dropped, want 1")
	got := lines.String()
	assert.True(t, len(got) <= 2000 && strings.Contains(got, "quota exceeded"), "%d bytes: %.300s", len(got), got)
}
