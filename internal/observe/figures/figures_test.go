package figures_test

import (
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/observe/figures"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

var (
	prefill = instance.Key{Role: instance.Prefill, Address: "p:1"}
	decode  = instance.Key{Role: instance.Decode, Address: "d:1"}
)

// proxy answers like a proxy, with metrics that the test sets.
type proxy struct {
	id, metrics string
	status      int
}

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if p.status != 0 {
		w.WriteHeader(p.status)
		return
	}
	if r.URL.Path == "/status" {
		fmt.Fprintf(w, `{"id":%q,"queues":[{"model":"chat","mode":"on","waiting":{"batch":3},"keys":{"a":2,"":1},"oldest":1.5,"saturation":{"decode":0.5}}]}`, p.id)
		return
	}
	fmt.Fprint(w, p.metrics)
}

// of returns the metrics of a proxy with n requests whose times to
// first token are all in the bucket from 0.1 to 0.5 s.
func of(n int, usage, age float64) string {
	return fmt.Sprintf(`# TYPE pd_requests_total counter
pd_requests_total{endpoint="/a",outcome="ok",code="200"} %[1]d
pd_requests_total{endpoint="/b",outcome="ok",code="200"} %[1]d
pd_requests_total{endpoint="/b",outcome="broken",code="200"} 1
# TYPE pd_queue_refused_total counter
pd_queue_refused_total{class="batch",reason="full"} 3
# TYPE pd_instance_in_flight gauge
pd_instance_in_flight{role="decode",instance="d:1"} 2
# TYPE pd_instance_kv_cache_usage gauge
pd_instance_kv_cache_usage{role="decode",instance="d:1"} %[2]v
# TYPE pd_instance_engine_age_seconds gauge
pd_instance_engine_age_seconds{role="decode",instance="d:1"} %[3]v
# TYPE pd_prompt_tokens_total counter
pd_prompt_tokens_total{instance="p:1",what="asked"} %[4]d
pd_prompt_tokens_total{instance="p:1",what="found"} %[1]d
# TYPE pd_instance_time_to_first_token_seconds histogram
pd_instance_time_to_first_token_seconds_bucket{role="prefill",instance="p:1",le="0.1"} 0
pd_instance_time_to_first_token_seconds_bucket{role="prefill",instance="p:1",le="0.5"} %[1]d
pd_instance_time_to_first_token_seconds_bucket{role="prefill",instance="p:1",le="+Inf"} %[1]d
pd_instance_time_to_first_token_seconds_sum{role="prefill",instance="p:1"} 1
pd_instance_time_to_first_token_seconds_count{role="prefill",instance="p:1"} %[1]d
`, n, usage, age, 4*n)
}

func is(t *testing.T, what string, got *float64, want float64) {
	t.Helper()
	if got == nil || math.Abs(*got-want) > 1e-9 {
		t.Errorf("%s: %v, want %v", what, text(got), want)
	}
}

func text(v *float64) string {
	if v == nil {
		return "unknown"
	}
	return fmt.Sprint(*v)
}

func TestFleet(t *testing.T) {
	t.Parallel()
	one, two := &proxy{id: "one", metrics: of(10, .5, 9)}, &proxy{id: "two", metrics: of(30, .7, 1)}
	wrong, broken, failing := &proxy{id: "another"}, &proxy{id: "broken", metrics: "no metrics {"}, &proxy{id: "failing", status: 500}
	var all []figures.Target
	for id, p := range map[string]*proxy{"one": one, "two": two, "wrong": wrong, "broken": broken, "failing": failing} {
		s := httptest.NewServer(p)
		t.Cleanup(s.Close)
		all = append(all, figures.Target{ID: id, URL: s.URL})
	}
	all = append(all, figures.Target{ID: "closed", URL: "http://127.0.0.1:1"})
	client := figures.NewClient()
	defer client.CloseIdleConnections()
	read := func() map[string]*figures.Sample {
		t.Helper()
		samples, failed := figures.Read(t.Context(), client, 30*time.Second, all)
		for id, want := range map[string]string{"wrong": "another program", "broken": "/metrics: ", "failing": "status 500", "closed": "refused"} {
			assert.Contains(t, failed[id], want, "%s: %q", id, failed[id])
		}
		require.Len(t, samples, 2)
		return samples
	}
	var h figures.History
	first := read()
	h.Add(first)
	f := h.Fleet()
	want := instance.ListedQueue{Model: "chat", Mode: "on", Waiting: map[string]int{"batch": 6}, Keys: map[string]int{"a": 4, "": 2}, Oldest: 1.5, Saturation: map[instance.Role]float64{instance.Decode: .5}}
	assert.Empty(t, cmp.Diff([]instance.ListedQueue{want}, f.Queues))
	refused := f.Counts(figures.QueueRefused)[figures.Series{Name: figures.QueueRefused, Label: "batch\nfull"}]
	is(t, "refused by the queue", &refused, 6)
	is(t, "in flight", f.Gauge(figures.Of(figures.InFlight, decode)), 4)
	is(t, "newest usage", f.Gauge(figures.Of(figures.Usage, decode)), .7)
	is(t, "hit rate", f.HitRate("p:1"), .25)
	is(t, "median", f.Quantile(.5, figures.Of(figures.First, prefill)), .3)
	is(t, "highest", f.Quantile(1, figures.Of(figures.First, prefill)), .5)
	for what, v := range map[string]*float64{
		"rate": f.Rate(figures.Requests, "ok"), "usage": f.Gauge(figures.Of(figures.Usage, prefill)), "hits": f.HitRate("p:2"),
		"times": f.Quantile(.5, figures.Of(figures.First, decode)),
	} {
		if v != nil {
			t.Errorf("%s is known: %v", what, *v)
		}
	}

	// Proxy one has 20 more requests of each endpoint; proxy two has restarted, and has had 5 since.
	one.metrics, two.metrics = of(30, .5, 9), of(5, .7, 1)
	second := read()
	for id, s := range second {
		s.At = first[id].At.Add(10 * time.Second)
	}
	h.Add(second)
	f = h.Fleet()
	is(t, "window", &f.Seconds, 10)
	is(t, "rate", f.Rate(figures.Requests, "ok"), (40+10)/10.)
	is(t, "failed", f.Rate(figures.Requests, "broken"), 0)

	// A proxy without a sample no longer counts; a new one counts only in gauges.
	h.Add(map[string]*figures.Sample{"one": second["one"], "three": second["two"]})
	f = h.Fleet()
	is(t, "in flight", f.Gauge(figures.Of(figures.InFlight, decode)), 4)
	is(t, "rate", f.Rate(figures.Requests, "ok"), 40/10.)
}

// A presence in etcd cannot make a proxy request other paths, or connect to a metadata service.
func TestURLsOfPresences(t *testing.T) {
	t.Parallel()
	var requests atomic.Int64
	one := &proxy{id: "one", metrics: of(1, .5, 1)}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		one.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	host := strings.TrimPrefix(s.URL, "http://")
	client := figures.NewClient()
	defer client.CloseIdleConnections()
	const form, refused = "not http://host:port", "is link-local"
	for _, tc := range []struct{ admin, address, reason string }{
		{admin: s.URL},
		{address: host},
		{admin: s.URL + "/path", reason: form},
		{admin: s.URL + "/", reason: form},
		{admin: s.URL + "?query=", reason: form},
		{admin: s.URL + "?", reason: form},
		{admin: s.URL + "#part", reason: form},
		{admin: "http://user@" + host, reason: form},
		{admin: "file://" + host, reason: form},
		{address: host + "/path", reason: form},
		{admin: "http://169.254.169.254:80", reason: refused},
		{admin: "http://[fe80::1]:80", reason: refused},
	} {
		before := requests.Load()
		p := lease.ProxyPresence{ID: "one", AdminURL: tc.admin, Address: tc.address}
		u, err := p.BaseURL()
		samples, failed := figures.Read(t.Context(), client, 30*time.Second, []figures.Target{{ID: "one", URL: u, Err: err}})
		n := requests.Load() - before
		if (len(samples) == 1) != (tc.reason == "") || !strings.Contains(failed["one"], tc.reason) || (n > 0) != (tc.reason == "") {
			t.Errorf("%+v: %q, %d requests", tc, failed["one"], n)
		}
	}
}

// The legs of an engine in both roles, which are listed under each role, count once.
func TestSumOfBothRoles(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	legs := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: figures.InFlight, Help: "h"}, []string{"role", "instance"})
	reg.MustRegister(legs)
	for k, n := range map[instance.Key]float64{
		{Role: instance.Prefill, Address: "b:1"}: 3, {Role: instance.Decode, Address: "b:1"}: 3, prefill: 1, decode: 2,
	} {
		legs.WithLabelValues(string(k.Role), k.Address).Set(n)
	}
	families, err := reg.Gather()
	require.NoError(t, err)
	var h figures.History
	h.Add(map[string]*figures.Sample{"one": figures.NewSample(families, nil)})
	sum := h.Fleet().Sum(figures.InFlight)
	is(t, "in flight", &sum, 6)
}

// Values above the largest bound count, also in metrics that are
// not read over HTTP and therefore have no bucket for them.
func TestValuesAboveTheLargestBound(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	times := prometheus.NewHistogram(prometheus.HistogramOpts{Name: figures.FirstToken, Help: "h", Buckets: []float64{.1, 5}})
	reg.MustRegister(times)
	for _, v := range []float64{.1, 9, 9} {
		times.Observe(v)
	}
	families, err := reg.Gather()
	require.NoError(t, err)
	var h figures.History
	h.Add(map[string]*figures.Sample{"one": figures.NewSample(families, nil)})
	is(t, "median", h.Fleet().Quantile(.5, figures.Series{Name: figures.FirstToken}), 5)
}

// The window is a minute, whatever the interval of the samples.
func TestWindow(t *testing.T) {
	t.Parallel()
	var h figures.History
	start := time.Now()
	for i := range 300 {
		h.Add(map[string]*figures.Sample{"one": {At: start.Add(time.Duration(i) * time.Second)}})
		got, want := h.Fleet().Seconds, float64(min(i, 60))
		require.True(t, got >= want && got <= want+10, "after %d s: a window of %v s", i, got)
	}
}

// If the series of a model ends and that of another one begins, this is not taken for a restart of the proxy.
func TestSeries_End(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	tokens := prometheus.NewCounterVec(prometheus.CounterOpts{Name: figures.Tokens, Help: "h"}, []string{"model", "what"})
	between := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: figures.Between, Help: "h", Buckets: []float64{.01, 1}}, []string{"model"})
	reg.MustRegister(tokens, between)
	var h figures.History
	add := func(at time.Time) {
		families, err := reg.Gather()
		require.NoError(t, err)
		s := figures.NewSample(families, nil)
		s.At = at
		h.Add(map[string]*figures.Sample{"one": s})
	}
	start := time.Now()
	tokens.WithLabelValues("m", "input").Add(1000)
	tokens.WithLabelValues("a", "input").Add(10)
	between.WithLabelValues("a").Observe(.9)
	add(start)
	tokens.DeleteLabelValues("a", "input")
	between.DeleteLabelValues("a")
	tokens.WithLabelValues("m", "input").Add(2)
	tokens.WithLabelValues("b", "input").Add(3)
	between.WithLabelValues("b").Observe(.01)
	add(start.Add(10 * time.Second))
	is(t, "input", h.Fleet().Rate(figures.Tokens, "input"), .5)
	if got := h.Fleet().Quantile(.5, figures.Series{Name: figures.Between}); got == nil || *got > .01 {
		t.Errorf("a median of %s s, want at most 0.01", text(got))
	}
}
