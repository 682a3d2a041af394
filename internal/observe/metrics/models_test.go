package metrics_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/forward/flow"
	"github.com/pdmesh/pdmesh/internal/forward/relay"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/observe/metrics"
	"github.com/pdmesh/pdmesh/internal/openai/response"
)

// gathered returns the values of counters and gauges, and the counts of histograms, by name and label values.
func gathered(t *testing.T, reg prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	require.NoError(t, err)
	got := map[string]float64{}
	for _, f := range families {
		for _, x := range f.GetMetric() {
			name := f.GetName()
			for _, l := range x.GetLabel() {
				name += " " + l.GetValue()
			}
			got[name] = float64(x.GetHistogram().GetSampleCount()) + x.GetCounter().GetValue() + x.GetGauge().GetValue()
		}
	}
	return got
}

func check(t *testing.T, got, want map[string]float64) {
	t.Helper()
	for name, n := range want {
		is, ok := got[name]
		assert.True(t, ok && is == n, "%s is %v (there: %t), want %v", name, is, ok, n)
	}
}

// membership publishes snapshots to Metrics, as the proxy does.
type membership struct {
	m    *metrics.Metrics
	last *instance.Snapshot
}

func (s *membership) set(all ...*instance.Instance) {
	now := instance.NewSnapshot(1, all)
	if s.last != nil {
		now.Documents = s.last.Documents
	}
	s.m.Follow(s.last, now)
	s.last = now
}

// route publishes a snapshot with these model routes.
func (s *membership) route(names ...string) {
	now := instance.NewSnapshot(1, s.last.All())
	now.Documents = &instance.Documents{}
	for _, name := range names {
		now.Documents.List = append(now.Documents.List, instance.Document{Key: instance.Key{Role: schema.Models, Address: name}})
	}
	s.m.Follow(s.last, now)
	s.last = now
}

func member(role instance.Role, address string, state instance.State, models ...string) *instance.Instance {
	return &instance.Instance{
		Key: instance.Key{Role: role, Address: address}, Lease: 7, Verified: true,
		Record: instance.Record{Address: address, State: state, Models: models},
	}
}

func answered(model string) *forward.Entry {
	return &forward.Entry{
		Endpoint: "/v1/chat/completions", Model: model, Route: flow.Route{Prefill: "p:1#1", Decode: "d:1"}, FirstToken: time.Second,
		Result: relay.Result{
			Outcome: relay.OutcomeOK, Status: 200, TTFT: time.Second, Gap: time.Millisecond,
			Tokens: response.Tokens{Input: 100, Cached: 60, Output: 7},
		},
	}
}

// TestModels: requests, tokens and times are counted by model, starting at zero for models
// that instances list. Further models, and names that no instance serves, count as other.
func TestModels(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewPedanticRegistry()
	m := metrics.New(reg, "", 2)
	fleet := &membership{m: m}
	fleet.set(member(instance.Prefill, "p:1", instance.Ready, "a"), member(instance.Decode, "d:1", instance.Ready, "a"))
	check(t, gathered(t, reg), map[string]float64{
		"pd_model_requests_total a ok": 0, "pd_model_requests_total a broken": 0, "pd_model_tokens_total a input": 0,
		"pd_model_time_to_first_token_seconds a": 0, "pd_model_requests_total other ok": 0,
	})
	m.Done(answered("a"))
	m.Done(answered("unlisted")) // was served nevertheless
	m.Done(answered("third"))
	m.Done(&forward.Entry{Endpoint: "/v1/completions", Result: relay.Result{Outcome: relay.OutcomeClientError, Status: 404}, Model: "made up"})
	m.Done(&forward.Entry{Endpoint: "/v1/models", Result: relay.Result{Outcome: relay.OutcomeOK, Status: 200}}) // names no model
	got := gathered(t, reg)
	check(t, got, map[string]float64{
		"pd_model_requests_total a ok": 1, "pd_model_requests_total unlisted ok": 1, "pd_model_requests_total other ok": 1, "pd_model_requests_total other client_error": 1,
		"pd_model_tokens_total a input": 100, "pd_model_tokens_total a cached": 60, "pd_model_tokens_total a output": 7,
		"pd_model_time_to_first_token_seconds a": 1, "pd_model_time_per_output_token_seconds a": 1, "pd_model_time_per_output_token_seconds other": 1,
	})
	for name := range got {
		assert.NotContains(t, name, "made up")
		assert.NotContains(t, name, "third")
	}
	// The label of a model that has left is given to a served one.
	fleet.set(member(instance.Prefill, "p:1", instance.Ready, "third"), member(instance.Decode, "d:1", instance.Ready, "third"))
	m.Done(answered("third"))
	got = gathered(t, reg)
	check(t, got, map[string]float64{"pd_model_requests_total third ok": 1, "pd_model_tokens_total third output": 7, "pd_model_requests_total other ok": 1})
	_, ok := got["pd_model_requests_total a ok"]
	assert.False(t, ok, "the model that has left has series")
}

// An adapter that got its label when it was used, while instances listed it, loses it when they no longer do.
func TestModels_LabelOfAnAdapter(t *testing.T) {
	t.Parallel()
	for name, order := range map[string][]string{"listed first": {"list", "serve"}, "served first": {"serve", "list"}} {
		reg := prometheus.NewPedanticRegistry()
		m := metrics.New(reg, "", 1)
		fleet := &membership{m: m}
		fleet.set(member(instance.Decode, "d:1", instance.Ready, "base"))
		for _, step := range order {
			if step == "list" {
				fleet.set(member(instance.Decode, "d:1", instance.Ready, "base", "x"))
			} else {
				m.Done(answered("x"))
			}
		}
		fleet.set(member(instance.Decode, "d:1", instance.Ready, "base", "y"))
		m.Done(answered("y"))
		assert.EqualValues(t, 1, gathered(t, reg)["pd_model_requests_total y ok"], name)
	}
}

// A model route keeps its label until it is deleted, whether it was stored before its first request or after.
func TestModels_LabelOfARoute(t *testing.T) {
	t.Parallel()
	for name, order := range map[string][]string{"stored first": {"store", "serve"}, "served first": {"serve", "store"}} {
		reg := prometheus.NewPedanticRegistry()
		m := metrics.New(reg, "", 1)
		fleet := &membership{m: m}
		fleet.set(member(instance.Decode, "d:1", instance.Ready, "base"))
		for _, step := range order {
			if step == "store" {
				fleet.route("old")
			} else {
				m.Done(answered("old"))
			}
		}
		m.Done(answered("new")) // no label is free
		fleet.route("new")
		m.Done(answered("new"))
		got := gathered(t, reg)
		check(t, got, map[string]float64{"pd_model_requests_total new ok": 1, "pd_model_requests_total other ok": 1})
		_, ok := got["pd_model_requests_total old ok"]
		assert.False(t, ok, "%s: a deleted model route has series", name)
	}
	reg := prometheus.NewPedanticRegistry()
	m := metrics.New(reg, "", 1)
	fleet := &membership{m: m}
	fleet.set()
	fleet.route("alias")
	refused := answered("alias")
	refused.Outcome = relay.OutcomeClientError
	m.Done(refused)
	check(t, gathered(t, reg), map[string]float64{"pd_model_requests_total alias client_error": 1, "pd_model_requests_total alias ok": 0})
}

// TestModels_LabelsAreBounded: whatever models exist and whatever clients send,
// there are at most the configured number of labels, and all are valid.
func TestModels_LabelsAreBounded(t *testing.T) {
	t.Parallel()
	for _, most := range []int{0, 1, 5} {
		reg := prometheus.NewPedanticRegistry()
		m := metrics.New(reg, "", most)
		fleet := &membership{m: m}
		var models []string
		for i := range 50 {
			models = append(models, fmt.Sprint("model-", i))
		}
		fleet.set(member(instance.Decode, "d:1", instance.Ready, models...))
		for i := range 50 {
			m.Done(answered(fmt.Sprint("model-", i%20)))
			m.Done(answered(strings.Repeat("x", 300) + fmt.Sprint(i)))
			m.Done(answered("\xff\x00" + fmt.Sprint(i)))
			m.Done(answered("other"))
		}
		labels := map[string]bool{}
		sum := 0.0
		for name, n := range gathered(t, reg) {
			if rest, ok := strings.CutPrefix(name, "pd_model_requests_total "); ok {
				labels[rest[:strings.LastIndexByte(rest, ' ')]] = true
				sum += n
			}
		}
		assert.True(t, len(labels) <= most+1 && sum == 200, "%d labels, %v requests", len(labels), sum)
	}
}

// TestModels_FewLabelLookups: a snapshot checks once that
// no label is free, not for each model of each instance.
func TestModels_FewLabelLookups(t *testing.T) {
	var models []string
	for i := range 500 {
		models = append(models, fmt.Sprint("model-", i))
	}
	var all []*instance.Instance
	for i := range 20 {
		all = append(all, member(instance.Decode, fmt.Sprint("d:", i+1), instance.Ready, models...))
	}
	follow := func(instances int) float64 {
		return testing.AllocsPerRun(1, func() {
			fleet := &membership{m: metrics.New(prometheus.NewRegistry(), "", 1)}
			fleet.set(all[:instances]...)
		})
	}
	if n := follow(20) - follow(1); n > 500 { // far fewer than one for each model of each instance
		t.Errorf("19 more instances need %v allocations", n)
	}
}

// TestInstances: times are counted by instance while the instance is in the membership.
func TestInstances(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewPedanticRegistry()
	m := metrics.New(reg, "", 2)
	fleet := &membership{m: m}
	p, d := member(instance.Prefill, "p:1", instance.Ready, "a"), member(instance.Decode, "d:1", instance.Ready, "a")
	fleet.set(p, d)
	m.Done(answered("a"))
	alone := answered("a")
	alone.Prefill, alone.DecodeOnly = "", "no_prefill"
	m.Done(alone)
	moved := answered("a")
	moved.BeganPrefill, moved.BeganDecode, moved.Prefill, moved.Decode = "p:1", "d:1", "", "d:9"
	m.Done(moved)
	for _, k := range []instance.Key{p.Key, d.Key, d.Key, {Role: instance.Decode, Address: "d:9"}} {
		m.Failed(k, "lost")
	}
	check(t, gathered(t, reg), map[string]float64{
		"pd_instance_failures_total lost p:1 prefill": 1, "pd_instance_failures_total lost d:1 decode": 2,
		"pd_instance_time_to_first_token_seconds p:1 prefill": 2, "pd_instance_time_to_first_token_seconds d:1 decode": 1,
		"pd_instance_time_per_output_token_seconds d:1 decode": 3,
	})
	fleet.set(p)
	m.Done(answered("a")) // ends after the instance has left
	got := gathered(t, reg)
	check(t, got, map[string]float64{"pd_instance_time_to_first_token_seconds p:1 prefill": 3})
	for name := range got {
		assert.NotContains(t, name, "d:1")
		assert.NotContains(t, name, "d:9")
	}
}

// TestVanished: an instance that was ready or down, and left without a drain, is counted.
func TestVanished(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(*instance.Instance)
		want   float64
	}{
		"ready":    {func(*instance.Instance) {}, 1},
		"down":     {func(in *instance.Instance) { in.Record.State = instance.Down }, 1},
		"drained":  {func(in *instance.Instance) { in.Record.State = instance.Draining }, 0},
		"starting": {func(in *instance.Instance) { in.Record.State = instance.Starting }, 0},
		"static":   {func(in *instance.Instance) { in.Lease = 0 }, 0},
		"intent":   {func(in *instance.Instance) { in.Intent = instance.Drain }, 0},
		"pending":  {func(in *instance.Instance) { in.View = instance.Pending }, 0},
	} {
		reg := prometheus.NewPedanticRegistry()
		fleet := &membership{m: metrics.New(reg, "", 0)}
		in := member(instance.Decode, "d:1", instance.Ready, "a")
		tc.change(in)
		fleet.set(in, member(instance.Decode, "d:2", instance.Ready, "a"))
		fleet.set(member(instance.Decode, "d:2", instance.Ready, "a"))
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			check(t, gathered(t, reg), map[string]float64{"pd_membership_vanished_total decode": tc.want, "pd_membership_vanished_total prefill": 0})
		})
	}
}

// TestCountersStartAtZero: counters are exported before their
// first increase, which an alert would miss otherwise.
func TestCountersStartAtZero(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewPedanticRegistry()
	metrics.New(reg, "", 100)
	want := map[string]float64{
		"pd_forward_retries_total lost prefill": 0, "pd_forward_retries_total first_byte_timeout decode": 0, "pd_forward_decode_only_total no_prefill": 0,
		"pd_forward_handovers_spent_total broke_off": 0, "pd_forward_asked_total refused": 0, "pd_model_tokens_total other output": 0,
	}
	for _, endpoint := range []string{"/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/inference/v1/generate"} {
		for _, end := range []string{"200 %s ok", "200 %s broken", "400 %s client_error", "499 %s client_gone", "502 %s upstream_error", "503 %s unavailable"} {
			want["pd_requests_total "+fmt.Sprintf(end, endpoint)] = 0
		}
	}
	check(t, gathered(t, reg), want)
}
