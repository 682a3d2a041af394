package forward_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/forward/flow"
	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/internal/forward/relay"
	"github.com/pdmesh/pdmesh/internal/health"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/internal/transport/upstream"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// canned answers every leg from memory, so that the benchmarks measure only the data path and are independent
// of engines.
type canned struct {
	prefill []byte
	stream  []string // events, one for each read; nil for a whole answer
}

func (c *canned) Do(_ context.Context, r *upstream.Request) (*upstream.Response, error) {
	if r.Instance.Role == instance.Decode && c.stream != nil {
		return &upstream.Response{Status: http.StatusOK, Header: streamHeader, Length: -1, Body: &events{rest: c.stream}}, nil
	}
	return &upstream.Response{
		Status: http.StatusOK, Header: jsonHeader, Length: int64(len(c.prefill)),
		Body: &whole{*bytes.NewReader(c.prefill)},
	}, nil
}
func (c *canned) Forget(string)                       {}
func (c *canned) Close()                              {}
func (c *canned) ReleasesBody(*upstream.Request) bool { return true }

var (
	jsonHeader   = http.Header{"Content-Type": {"application/json"}, "Date": {"now"}, "Server": {"uvicorn"}}
	streamHeader = http.Header{"Content-Type": {"text/event-stream; charset=utf-8"}, "Date": {"now"}, "Server": {"uvicorn"}}
)

type whole struct{ bytes.Reader }

func (*whole) Close() error { return nil }

type events struct{ rest []string }

func (e *events) Read(p []byte) (int, error) {
	if len(e.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p, e.rest[0])
	e.rest = e.rest[1:]
	return n, nil
}
func (*events) Close() error { return nil }

// sink is a client that discards the answer.
type sink struct {
	header http.Header
	failed bool // a status other than 200 was sent
	n      int
}

func (s *sink) Header() http.Header              { return s.header }
func (s *sink) WriteHeader(status int)           { s.failed = s.failed || status != http.StatusOK }
func (s *sink) Write(b []byte) (int, error)      { s.n += len(b); return len(b), nil }
func (s *sink) Flush()                           {}
func (s *sink) SetReadDeadline(time.Time) error  { return nil }
func (s *sink) SetWriteDeadline(time.Time) error { return nil }

type noRecorder struct{}

func (noRecorder) Done(*forward.Entry)            {}
func (noRecorder) Failed(instance.Key, leg.Class) {}

func (noRecorder) Retried(instance.Role, leg.Class)    {}
func (noRecorder) Handed(*instance.Instance, bool)     {}
func (noRecorder) Disaggregated(bool, string, float64) {}
func (noRecorder) TransferSpent(leg.Class)             {}
func (noRecorder) Media()                              {}
func (noRecorder) Asked(string)                        {}
func (noRecorder) NotContinued(string)                 {}

func (noRecorder) Continued(leg.Class, string, time.Duration) {}

// BenchmarkRequest measures the data path of one request without the network: reading the body, both legs,
// the answer.
func BenchmarkRequest(b *testing.B) {
	var stream []string
	for i := range 64 {
		stream = append(stream, token(i))
	}
	stream = append(stream, closing)
	for _, bc := range []struct {
		name   string
		prompt int
		stream []string
	}{{"small", 128, nil}, {"stream64", 2 << 10, stream}, {"prompt64KiB", 64 << 10, nil}} {
		b.Run(bc.name, func(b *testing.B) {
			h := benchHandler(b, &canned{prefill: []byte(plainAnswer), stream: bc.stream})
			body := fmt.Sprintf(`{"model":"m","prompt":"%s","max_tokens":64,"temperature":0,"stream":%v}`, strings.Repeat("x", bc.prompt), bc.stream != nil)
			serve(b, h, body, len(body))
		})
	}
}

// serve measures one request. length is its Content-Length, -1 for none.
func serve(b *testing.B, h http.HandlerFunc, body string, length int) {
	b.Helper()
	in := strings.NewReader(body)
	r := newRequest(b.Context(), b, http.MethodPost, completionsPath, in)
	r.ContentLength = int64(length)
	w := &sink{header: http.Header{}}
	b.ReportAllocs()
	for b.Loop() {
		in.Reset(body)
		clear(w.header)
		h(w, r)
	}
	if w.failed || w.n < b.N*100 {
		b.Fatalf("%d bytes for %d requests, or one failed", w.n, b.N)
	}
}

// benchHandler returns a handler with one prefill instance and these decode instances, or one if none is
// given. up answers for all engines.
func benchHandler(b testing.TB, up upstream.Client, decode ...string) http.HandlerFunc {
	b.Helper()
	return handlerOf(b, up, func(*forward.Options) {}, decode...)
}

// handlerOf is benchHandler with other options.
func handlerOf(b testing.TB, up upstream.Client, set func(*forward.Options), decode ...string) http.HandlerFunc {
	b.Helper()
	if len(decode) == 0 {
		decode = []string{"d:1"}
	}
	serve := rolesHandler(b, up, set, []string{"p:1"}, decode).Completion(openai.Completion)
	return func(w http.ResponseWriter, r *http.Request) { serve(relay.Std(w), r) }
}

// rolesHandler returns a handler for instances at these addresses.
func rolesHandler(b testing.TB, up upstream.Client, set func(*forward.Options), prefill, decode []string) *forward.Handler {
	b.Helper()
	var list []*instance.Instance
	for _, address := range prefill {
		list = append(list, instanceAt(instance.Prefill, address, fakevllm.NIXL))
	}
	for _, address := range decode {
		list = append(list, instanceAt(instance.Decode, address, fakevllm.NIXL))
	}
	var m members
	m.set(list...)
	tracker := health.New(health.Options{Source: &m, Prober: prober{}, Log: quiet()})
	b.Cleanup(tracker.Close)
	o := forward.Options{
		Config: flow.Config{
			Picker: sched.New(sched.Options{Source: &m, Health: tracker, PairKey: pairKey}),
			Health: tracker, Log: quiet(),
		},
		Settings: leg.Settings{Upstream: up}, Recorder: noRecorder{},
	}
	set(&o)
	h, err := forward.New(o)
	require.NoError(b, err)
	return h
}
