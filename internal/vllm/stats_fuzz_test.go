package vllm

import (
	"math"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// FuzzStats holds what is read of /metrics against Prometheus' own parser, for
// every text that one takes.
func FuzzStats(f *testing.F) {
	for _, s := range []string{
		"vllm:num_requests_running{model_name=\"m\"} 3.0\nvllm:num_requests_waiting{model_name=\"m\"} 0.0\n",
		"# TYPE vllm:request_success_total counter\nvllm:request_success_total{finished_reason=\"stop\"} 2\nvllm:request_success_total{finished_reason=\"abort\"} 1\n",
		"vllm:kv_cache_usage_perc{e=\"0\"} 0.5\nvllm:kv_cache_usage_perc{e=\"1\"} 0.25 1700000000000\n",
		"vllm:gpu_cache_usage_perc 0.5\n",
		"process_start_time_seconds 1.7e+09\n",
		"vllm:num_requests_running{model_name=\"a}\\\"b\\\\\"} 1\nvllm:num_requests_waiting NaN\n",
		"  vllm:num_requests_running\t7\n\n# HELP x y\n",
		"vllm:num_requests_running{a=\"\\",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := parseStats(strings.NewReader(text), maxMetricsBytes)
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		parser := expfmt.NewTextParser(model.LegacyValidation)
		families, err := parser.TextToMetricFamilies(strings.NewReader(text))
		if err != nil {
			return // we skip the lines that it refuses
		}
		for _, c := range []struct {
			name string
			got  float64
		}{
			{"vllm:num_requests_running", got.Running},
			{"vllm:num_requests_waiting", got.Waiting},
			{"vllm:request_success_total", got.Finished},
		} {
			want, n, ok := sum(families[c.name])
			if !ok {
				return
			}
			if !same(c.got, want) {
				t.Errorf("%q: %s is %v, want %v", text, c.name, c.got, want)
			}
			if n == 0 && got.Complete && c.name != "vllm:request_success_total" {
				t.Errorf("%q: complete without %s", text, c.name)
			}
		}
		usage, n, ok := sum(families["vllm:kv_cache_usage_perc"])
		if n == 0 {
			usage, n, ok = sum(families["vllm:gpu_cache_usage_perc"])
		}
		if ok && n > 0 && !same(got.KVCacheUsage, usage/float64(n)) {
			t.Errorf("%q: usage %v, want %v of %d", text, got.KVCacheUsage, usage, n)
		}
	})
}

// sum adds up the samples that are numbers. ok is false for a family whose
// samples have other names than it.
func sum(m *dto.MetricFamily) (total float64, n int, ok bool) {
	for _, s := range m.GetMetric() {
		var v float64
		switch m.GetType() {
		case dto.MetricType_COUNTER:
			v = s.GetCounter().GetValue()
		case dto.MetricType_GAUGE:
			v = s.GetGauge().GetValue()
		case dto.MetricType_UNTYPED:
			v = s.GetUntyped().GetValue()
		default:
			return 0, 0, false
		}
		if !math.IsNaN(v) && !math.IsInf(v, 0) {
			total += v
			n++
		}
	}
	return total, n, true
}

func same(a, b float64) bool {
	return a == b || math.IsNaN(a) && math.IsNaN(b) || math.Abs(a-b) <= 1e-9*math.Abs(b)
}
