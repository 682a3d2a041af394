package metrics_test

import (
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/forward/flow"
	"github.com/pdmesh/pdmesh/internal/forward/relay"
	"github.com/pdmesh/pdmesh/internal/forward/stage"
	"github.com/pdmesh/pdmesh/internal/observe/metrics"
)

func TestRequestsAreCountedByKind(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	m := metrics.New(reg, "test", 100)
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			for range 100 {
				m.Done(&forward.Entry{Endpoint: "/v1/completions", Result: relay.Result{Outcome: relay.OutcomeOK, Status: 200, TTFT: time.Second}, Route: flow.Route{Prefill: "p:1", Decode: "d:1"}, FirstToken: time.Second})
				m.Done(&forward.Entry{Endpoint: "/v1/completions", Result: relay.Result{Outcome: relay.OutcomeClientError, Status: 400}})
				m.Done(&forward.Entry{Endpoint: "/v1/chat/completions", Result: relay.Result{Outcome: relay.OutcomeOK, Status: 200}, Route: flow.Route{DecodeOnly: "no_prefill"}})
			}
		})
	}
	clients.Wait()
	check(t, gathered(t, reg), map[string]float64{
		"pd_requests_total 200 /v1/completions ok": 800, "pd_requests_total 400 /v1/completions client_error": 800,
		"pd_requests_total 200 /v1/chat/completions ok": 800, "pd_forward_decode_only_total no_prefill": 800,
		"pd_request_duration_seconds /v1/completions": 1600, "pd_request_duration_seconds /v1/chat/completions": 800,
		"pd_time_to_first_token_seconds /v1/completions pair": 800, "pd_time_to_first_token_seconds /v1/chat/completions decode_only": 0,
	})
}

// A request's times up to prefill count for the role prefill. This includes a
// prefill without a KV transfer, so that decode served alone, and a pair whose
// stream decode continued. A stored answer has neither a first token nor stages.
func TestStages_ByRole(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	m := metrics.New(reg, "test", 100)
	times := stage.Stages{Queue: 1, Prefill: time.Second, Handover: time.Second, Decode: time.Second}
	lost := forward.Entry{Endpoint: "/lost", Result: relay.Result{Outcome: relay.OutcomeOK, Status: 200, TTFT: 2 * time.Second}, Route: flow.Route{Prefill: "p:1", Decode: "d:1", DecodeOnly: "no_handover"}, FirstToken: 2 * time.Second, Stages: times}
	alone := lost
	alone.Endpoint, alone.Prefill, alone.DecodeOnly, alone.Stages.Handover = "/alone", "", "no_prefill", 0
	moved := alone // continued from a pair
	moved.Endpoint, moved.BeganPrefill, moved.BeganDecode, moved.DecodeOnly = "/moved", "p:1", "d:2", ""
	stored := alone
	stored.Endpoint, stored.DecodeOnly = "/stored", ""
	for _, e := range []*forward.Entry{&lost, &alone, &moved, &stored} {
		m.Done(e)
	}
	families, err := reg.Gather()
	require.NoError(t, err)
	var got []string
	for _, f := range families {
		if name := f.GetName(); name != "pd_stage_seconds" && name != "pd_time_to_first_token_seconds" {
			continue
		}
		for _, x := range f.GetMetric() {
			if x.GetHistogram().GetSampleCount() == 0 {
				continue
			}
			name := ""
			for _, l := range x.GetLabel() {
				name += " " + l.GetValue()
			}
			got = append(got, name[1:])
		}
	}
	want := []string{
		"/alone decode decode", "/alone decode prefill", "/alone decode queue",
		"/lost decode decode", "/lost decode handover", "/lost prefill prefill", "/lost prefill queue",
		"/moved decode decode", "/moved prefill prefill", "/moved prefill queue",
		"/alone decode_only", "/lost pair", "/moved pair",
	}
	assert.Equal(t, want, got, "counted\n, want")
}

// Counting must not allocate: it happens for every request.
func BenchmarkDone(b *testing.B) {
	m := metrics.New(prometheus.NewRegistry(), "test", 100)
	e := &forward.Entry{Endpoint: "/v1/completions", Result: relay.Result{Outcome: relay.OutcomeOK, Status: 200, TTFT: time.Millisecond}, Duration: time.Second}
	b.ReportAllocs()
	for b.Loop() {
		m.Done(e)
	}
}

func TestBodies(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewPedanticRegistry()
	metrics.Bodies(func() (int64, int64, int64) { return 3, 7, 2 }).Register(reg)
	want := map[string]float64{
		"pd_request_bodies_bytes": 3, "pd_request_bodies_limit_bytes": 7, "pd_request_bodies_refused_total": 2,
	}
	got := gathered(t, reg)
	assert.True(t, maps.Equal(got, want), "got %v, want %v", got, want)
}
