package metrics_test

import (
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/metrics"
)

func TestRequestsAreCountedByKind(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	m := metrics.New(reg, "test")
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			for range 100 {
				m.Done(&forward.Entry{Endpoint: "/v1/completions", Outcome: forward.OutcomeOK, Status: 200, TTFT: time.Second, FirstToken: time.Second})
				m.Done(&forward.Entry{Endpoint: "/v1/completions", Outcome: forward.OutcomeClientError, Status: 400})
				m.Done(&forward.Entry{Endpoint: "/v1/chat/completions", Outcome: forward.OutcomeOK, Status: 200, Alone: "no_prefill"})
			}
		})
	}
	clients.Wait()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]uint64{}
	for _, f := range families {
		for _, x := range f.GetMetric() {
			name := f.GetName()
			for _, l := range x.GetLabel() {
				name += " " + l.GetValue()
			}
			counts[name] = x.GetHistogram().GetSampleCount() + uint64(x.GetCounter().GetValue())
		}
	}
	for name, n := range map[string]uint64{
		"pd_requests_total 200 /v1/completions ok": 800, "pd_requests_total 400 /v1/completions client_error": 800,
		"pd_requests_total 200 /v1/chat/completions ok": 800, "pd_forward_decode_alone_total no_prefill": 800,
		"pd_request_duration_seconds /v1/completions": 1600, "pd_request_duration_seconds /v1/chat/completions": 800,
		"pd_time_to_first_token_seconds /v1/completions pair": 800, "pd_time_to_first_token_seconds /v1/chat/completions alone": 0,
	} {
		if counts[name] != n {
			t.Errorf("%s counted %d, want %d", name, counts[name], n)
		}
	}
}

// Counting must not cost memory: it is done for every request.
func BenchmarkDone(b *testing.B) {
	m := metrics.New(prometheus.NewRegistry(), "test")
	e := &forward.Entry{Endpoint: "/v1/completions", Outcome: forward.OutcomeOK, Status: 200, Duration: time.Second, TTFT: time.Millisecond}
	b.ReportAllocs()
	for b.Loop() {
		m.Done(e)
	}
}
