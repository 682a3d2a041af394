package metrics_test

import (
	"strings"
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/sim/fakevllm/metrics"
)

// Each rank has its label, and a name is typed once.
func TestPage(t *testing.T) {
	t.Parallel()
	var page []byte
	for rank := range 2 {
		st := new(metrics.Stats)
		st.TTFT.Observe(time.Duration(rank+1) * 30 * time.Millisecond)
		st.Length.Add(int64(rank))
		page = metrics.AppendCore(page, &metrics.Core{Model: `a"b`, Rank: rank, Running: 3, BlockSize: 16, Blocks: 8, NIXL: rank == 0, Stats: st})
	}
	page = metrics.AppendStart(page, time.Unix(5, 0))
	for _, want := range []string{
		`vllm:num_requests_running{model_name="a\"b",engine="0"} 3`,
		`vllm:request_success_total{model_name="a\"b",engine="1",finished_reason="length"} 1`,
		`vllm:time_to_first_token_seconds_bucket{model_name="a\"b",engine="0",le="0.02"} 0`,
		`vllm:time_to_first_token_seconds_bucket{model_name="a\"b",engine="0",le="0.04"} 1`,
		`vllm:time_to_first_token_seconds_bucket{model_name="a\"b",engine="1",le="+Inf"} 1`,
		`vllm:time_to_first_token_seconds_sum{model_name="a\"b",engine="1"} 0.06`,
		`vllm:nixl_num_failed_transfers_total{model_name="a\"b",engine="0"} 0`,
		`process_start_time_seconds 5.000`,
	} {
		if !strings.Contains(string(page), want+"\n") {
			t.Errorf("no %s", want)
		}
	}
	if n := strings.Count(string(page), "# TYPE vllm:num_requests_running "); n != 1 {
		t.Errorf("typed %d times", n)
	}
	if strings.Contains(string(page), `nixl_num_failed_transfers_total{model_name="a\"b",engine="1"}`) {
		t.Error("an engine without NIXL has its counters")
	}
}
