package vllm

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
)

func TestLoad(t *testing.T) {
	t.Parallel()
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
`, []RankLoad{
			{Rank: 0, Blocks: 1000, Block: 16, Usage: 0.25, Running: 2, Fetching: 3, PromptTokens: 70, GeneratedTokens: 80, Core: true},
			{Rank: 1, Block: 32, Usage: 1, Running: 3, Waiting: 5, Starved: 4, Deferred: 1, GeneratedTokens: 90},
		}},
		{"an old engine without ranks", "vllm:num_requests_running 1\nvllm:gpu_cache_usage_perc{model_name=\"m\"} 0.5\n", []RankLoad{{Running: 1, Usage: 0.5}}},
		{"no line end, and a line longer than any buffer",
			"vllm:num_requests_running{model_name=\"" + strings.Repeat("x", 1<<17) + "\"} 7\nvllm:num_requests_waiting 2", []RankLoad{{Waiting: 2}}},
		{"what is no number", "vllm:num_requests_running NaN\nvllm:num_requests_waiting -1\nvllm:kv_cache_usage_perc{engine=\"-3\"} 1\n", nil},
		{"none of ours", "# vllm:num_requests_running 1\nup 1\n", nil},
	} {
		base := metricsOf(t, tc.text)
		got, err := New("").Load(t.Context(), base)
		if err != nil || !slices.Equal(got, tc.want) {
			t.Errorf("%s: %+v, %v; want %+v", tc.name, got, err, tc.want)
		}
	}
}

func TestLoadIsBounded(t *testing.T) {
	t.Parallel()
	if _, err := parseLoad(strings.NewReader(strings.Repeat("x 1\n", 100)), 399); !errors.Is(err, ErrTooLarge) {
		t.Errorf("a body that is too long: %v", err)
	}
	var many strings.Builder
	for i := range 2 * maxRanks {
		many.WriteString("vllm:num_requests_running{engine=\"" + strings.Repeat("1", i%6) + "\"} 1\n")
		many.WriteString("vllm:num_requests_waiting{engine=\"" + string(rune('0'+i%10)) + string(rune('0'+i/10%10)) + string(rune('0'+i/100)) + "\"} 1\n")
	}
	got, err := parseLoad(strings.NewReader(many.String()), 1<<20)
	if err != nil || len(got) != maxRanks {
		t.Errorf("%d ranks, %v; want %d", len(got), err, maxRanks)
	}
}

func FuzzLoad(f *testing.F) {
	for _, s := range []string{
		"vllm:num_requests_running{engine=\"1\"} 3\n", "vllm:cache_config_info{num_gpu_blocks=\"9\",block_size=\"\\\"", "vllm:kv_cache_usage_perc{=\"\"} 1",
		"vllm:num_requests_waiting{engine=\"0\", a=\"}\" } 1 2\n",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		ranks, err := parseLoad(strings.NewReader(text), maxMetricsBytes)
		if err != nil {
			t.Fatal(err)
		}
		stats, err := parseStats(strings.NewReader(text), maxMetricsBytes)
		if err != nil {
			t.Fatal(err)
		}
		running, odd := 0.0, strings.Contains(text, "-") // numbers below 0, and of ranks
		for i, r := range ranks {
			if running += r.Running; i > 0 && ranks[i-1].Rank >= r.Rank || r.Rank < 0 || r.Usage < 0 || r.Usage > 1 || r.Blocks < 0 || r.Block < 0 {
				t.Fatalf("%q: %+v", text, ranks)
			}
		}
		if !odd && !strings.Contains(text, "engine") && !strings.ContainsAny(text, "\t") && !strings.Contains(text, " vllm") && !same(running, stats.Running) {
			t.Fatalf("%q: %g run, and %g by the other reader", text, running, stats.Running)
		}
	})
}

func metricsOf(t *testing.T, text string) string {
	t.Helper()
	return engine(t, map[string]http.HandlerFunc{"/metrics": says(http.StatusOK, text)})
}
