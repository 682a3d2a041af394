package vllm

import (
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
)

func TestLoad(t *testing.T) {
	t.Parallel()
	started := time.Unix(1.7e9, 0).UTC()
	for _, tc := range []struct {
		name, text string
		want       []RankLoad
	}{
		{"two ranks, in any order", `# HELP vllm:num_requests_running Number of requests
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="1",model_name="a \"b\" {c}, engine=\"9\""} 3.0
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting{engine="1",model_name="m"} 5.0
vllm:num_requests_waiting_by_reason{engine="1",model_name="m",reason="capacity"} 4.0
vllm:num_requests_waiting_by_reason{engine="1",model_name="m",reason="deferred"} 1.0
vllm:num_requests_kv_fetch_by_stage{engine="0",model_name="m",stage="waiting_to_start"} 1.0
vllm:num_requests_kv_fetch_by_stage{engine="0",model_name="m",stage="in_progress"} 2.0
vllm:num_requests_kv_fetch_by_stage{engine="0",model_name="m",stage="completed_waiting"} 8.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 1.5
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",num_gpu_blocks="1000",num_gpu_blocks_override="None"} 1.0
vllm:cache_config_info{block_size="32",engine="1",num_gpu_blocks="None"} 1.0
vllm:prompt_tokens_total{engine="0",model_name="m"} 70.0
vllm:generation_tokens_total{engine="0",model_name="m"} 80.0
vllm:prompt_tokens_created{engine="0",model_name="m"} 1.7e9
vllm:generation_tokens_total{engine="1",model_name="m"} 90.0
vllm:num_requests_waiting{engine="0",model_name="m"} 0.0
vllm:request_success_total{engine="2",finished_reason="stop"} 9.0
process_start_time_seconds 1.7e9
`, []RankLoad{
			{Rank: 0, StartedAt: started, Blocks: 1000, Block: 16, Usage: 0.25, Running: 2, Fetching: 3, Fetched: 8, PromptTokens: 70, GeneratedTokens: 80, Core: true},
			{Rank: 1, StartedAt: started, Block: 32, Usage: 1, Running: 3, Waiting: 5, Starved: 4, Deferred: 1, GeneratedTokens: 90},
		}},
		{"an old engine without ranks", "vllm:num_requests_running 1\nvllm:gpu_cache_usage_perc{model_name=\"m\"} 0.5\n", []RankLoad{{Running: 1, Usage: 0.5}}},
		{"no line end, and a line longer than any buffer",
			"vllm:num_requests_running{model_name=\"" + strings.Repeat("x", 1<<17) + "\"} 7\nvllm:num_requests_waiting 2", []RankLoad{{Waiting: 2}}},
		{"what is no number", "vllm:num_requests_running NaN\nvllm:num_requests_waiting -1\nvllm:kv_cache_usage_perc{engine=\"-3\"} 1\n", nil},
		{"none of ours", "# vllm:num_requests_running 1\nup 1\n", nil},
	} {
		base := metricsOf(t, tc.text)
		got, err := New("").Load(t.Context(), base)
		require.NoError(t, err, tc.name)
		assert.Equal(t, tc.want, got, tc.name)
	}
}

func TestLoadIsBounded(t *testing.T) {
	t.Parallel()
	var many strings.Builder
	for i := range 2 * instance.MaxRanks {
		many.WriteString("vllm:num_requests_running{engine=\"" + strings.Repeat("1", i%6) + "\"} 1\n")
		many.WriteString("vllm:num_requests_waiting{engine=\"" + string(rune('0'+i%10)) + string(rune('0'+i/10%10)) + string(rune('0'+i/100)) + "\"} 1\n")
	}
	p, err := parsePage(strings.NewReader(many.String()), 1<<20)
	got := len(p.load())
	assert.True(t, err == nil && got == instance.MaxRanks, "%d ranks, %v; want %d", got, err, instance.MaxRanks)
}

// FuzzMetrics compares the parsed /metrics with Prometheus' parser, for every text that the latter accepts.
func FuzzMetrics(f *testing.F) {
	for _, s := range []string{
		"vllm:num_requests_running{model_name=\"m\"} 3.0\nvllm:num_requests_waiting{model_name=\"m\"} 0.0\n",
		"# TYPE vllm:request_success_total counter\nvllm:request_success_total{finished_reason=\"stop\"} 2\nvllm:request_success_total{finished_reason=\"abort\"} 1\n",
		"vllm:kv_cache_usage_perc{engine=\"0\"} 0.5\nvllm:kv_cache_usage_perc{engine=\"1\"} 0.25 1700000000000\n",
		"vllm:gpu_cache_usage_perc 0.5\n",
		"process_start_time_seconds 1.7e+09\n",
		"vllm:num_requests_running{model_name=\"a}\\\"b\\\\\"} 1\nvllm:num_requests_waiting NaN\n",
		"  vllm:num_requests_running\t7\n\n# HELP x y\n",
		"vllm:num_requests_running{a=\"\\",
		"vllm:num_requests_running{engine=\"1\"} 3\n", "vllm:cache_config_info{num_gpu_blocks=\"9\",block_size=\"\\\"", "vllm:kv_cache_usage_perc{=\"\"} 1",
		"vllm:num_requests_waiting{engine=\"0\", a=\"}\" } 1 2\n",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := parsePage(strings.NewReader(text), maxMetricsBytes)
		require.NoError(t, err, text)
		ranks, got := p.load(), p.stats()
		for i, r := range ranks {
			if i > 0 && ranks[i-1].Rank >= r.Rank || r.Rank < 0 || r.Usage < 0 || r.Usage > 1 || r.Blocks < 0 || r.Block < 0 {
				t.Fatalf("%q: %+v", text, ranks)
			}
		}
		parser := expfmt.NewTextParser(model.LegacyValidation)
		families, err := parser.TextToMetricFamilies(strings.NewReader(text))
		if err != nil {
			return // invalid lines are skipped
		}
		if strings.Contains(text, "engine") && strings.Contains(text, "-") {
			return // samples of invalid ranks are skipped
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
			assert.True(t, same(c.got, want), "%q: %s is %v, want %v", text, c.name, c.got, want)
			assert.False(t, n == 0 && got.Complete && c.name != "vllm:request_success_total",
				"%q: complete without %s", text, c.name)
		}
		usage, n, ok := sum(families["vllm:kv_cache_usage_perc"])
		if n == 0 {
			usage, n, ok = sum(families["vllm:gpu_cache_usage_perc"])
		}
		all := 0.0
		for _, r := range ranks {
			all += r.Usage
		}
		assert.False(t, ok && n == len(ranks) && usage <= 1 && !same(all, usage),
			"%q: usage %v, want %v of %d", text, all, usage, n)
	})
}

// sum returns the sum of the samples that are non-negative numbers. ok is
// false for a family whose samples have other names, such as a histogram.
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
		if v >= 0 && !math.IsInf(v, 0) {
			total += v
			n++
		}
	}
	return total, n, true
}

func same(a, b float64) bool {
	return a == b || math.IsNaN(a) && math.IsNaN(b) || math.Abs(a-b) <= 1e-9*math.Abs(b)
}

func metricsOf(t *testing.T, text string) string {
	t.Helper()
	return engine(t, map[string]http.HandlerFunc{"/metrics": says(http.StatusOK, text)})
}
