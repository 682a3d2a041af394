package fakevllm_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// An engine uses the data-parallel rank that a request names, and refuses unknown ones as vLLM
// does. Each rank has its own engine id, side channel and metrics.
func TestDataParallelRanks(t *testing.T) {
	t.Parallel()
	s := fakevllm.StartTest(t, fakevllm.Options{Mode: fakevllm.NIXL, Role: fakevllm.RolePrefill, DPSize: 3})
	c := client(t)
	const header = "X-data-parallel-rank"
	ask := func(rank ...string) (int, string) {
		t.Helper()
		r := post(t, c, s.URL()+"/v1/completions", "", `{"model":"fake-model","prompt":"a","max_tokens":1,"kv_transfer_params":`+prefillForm+`}`, rank...)
		return r.status, r.body
	}
	for rank, want := range s.Ranks() {
		status, body := ask(header, fmt.Sprint(rank))
		assert.True(t, status == http.StatusOK && strings.Contains(body, `"remote_engine_id":"`+want.EngineID+`"`),
			"rank %d: %d %s", rank, status, body)
		assert.EqualValues(t, 1, s.Ranks()[rank].Requests, "rank %d: %+v", rank, s.Ranks())
	}
	for _, rank := range []string{"3", "-1"} {
		if status, body := ask(header, rank); status != http.StatusBadRequest || !strings.Contains(body, "data_parallel_rank "+rank+" is out of range [0, 3).") {
			t.Errorf("rank %s: %d %s", rank, status, body)
		}
	}
	for range 3 {
		status, body := ask()
		assert.Equal(t, http.StatusOK, status, "no rank: %s", body)
	}
	for rank, is := range s.Ranks() {
		assert.EqualValues(t, 2, is.Requests, "requests of rank %d", rank)
	}
	metrics := get(t, c, s.URL()+"/metrics").body
	for _, engine := range []string{"0", "1", "2"} {
		if !strings.Contains(metrics, `vllm:num_requests_running{model_name="fake-model",engine="`+engine+`"} 0`) {
			t.Errorf("no metrics of %s", engine)
		}
	}
	n := strings.Count(metrics, "# TYPE vllm:num_requests_running ")
	assert.Equal(t, 1, n, "typed %d times", n)
	s.Kill()
	s.SetDPSize(1)
	require.NoError(t, s.Restart(t.Context()))
	if status, body := ask(header, "1"); status != http.StatusBadRequest || !strings.Contains(body, "[0, 1)") {
		t.Errorf("after the restart: %d %s", status, body)
	}
}
