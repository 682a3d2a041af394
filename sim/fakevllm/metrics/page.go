// Package metrics renders the page /metrics with vLLM's names of metrics.
package metrics

import (
	"strconv"
	"sync/atomic"
	"time"

	"github.com/pdmesh/pdmesh/sim/fakevllm/jsontext"
)

// Core has the values of one rank's metrics.
type Core struct {
	Model                      string
	Rank                       int
	Running, Waiting, Deferred int64
	Usage                      float64 // used part of the KV cache, 0 to 1
	BlockSize, Blocks          int
	NIXL                       bool // the rank has the counters of NixlConnector
	Stats                      *Stats
}

// AppendCore renders the metrics of one rank, with its labels. Only rank 0 has TYPE lines.
func AppendCore(b []byte, c *Core) []byte {
	labels := string(jsontext.AppendText([]byte(`model_name="`), c.Model)) + `",engine="` + strconv.Itoa(c.Rank) + `"`
	number := func(kind, name, extra string, v float64) {
		if kind != "" && c.Rank == 0 {
			b = append(b, "# TYPE "+name+" "+kind+"\n"...)
		}
		b = append(b, name+"{"+labels+extra+"} "...)
		b = append(strconv.AppendFloat(b, v, 'g', -1, 64), '\n')
	}
	st, bounds := c.Stats, bucketBounds()
	number("gauge", "vllm:num_requests_running", "", float64(c.Running))
	number("gauge", "vllm:num_requests_waiting", "", float64(c.Waiting))
	number("gauge", "vllm:num_requests_waiting_by_reason", `,reason="capacity"`, float64(c.Waiting))
	number("", "vllm:num_requests_waiting_by_reason", `,reason="deferred"`, float64(c.Deferred))
	number("gauge", "vllm:kv_cache_usage_perc", "", c.Usage)
	number("counter", "vllm:prefix_cache_queries_total", "", float64(st.CacheQueries.Load()))
	number("counter", "vllm:prefix_cache_hits_total", "", float64(st.CacheHits.Load()))
	number("counter", "vllm:prompt_tokens_total", "", float64(st.PromptTokens.Load()))
	number("counter", "vllm:generation_tokens_total", "", float64(st.GenerationTokens.Load()))
	number("counter", "vllm:num_preemptions_total", "", 0)
	number("counter", "vllm:request_success_total", `,finished_reason="stop"`, float64(st.Stop.Load()))
	number("", "vllm:request_success_total", `,finished_reason="length"`, float64(st.Length.Load()))
	number("", "vllm:request_success_total", `,finished_reason="abort"`, float64(st.Abort.Load()))
	number("", "vllm:request_success_total", `,finished_reason="error"`, float64(st.Fail.Load()))
	number("gauge", "vllm:cache_config_info", `,block_size="`+strconv.Itoa(c.BlockSize)+`",num_gpu_blocks="`+strconv.Itoa(c.Blocks)+`"`, 1)
	if c.NIXL { // present from the start of the engine
		for _, name := range []string{"failed_transfers", "failed_notifications", "kv_expired_reqs", "notifications_after_expiry"} {
			number("counter", "vllm:nixl_num_"+name+"_total", "", 0)
		}
	}
	for _, h := range []struct {
		name string
		h    *Histogram
	}{
		{"vllm:time_to_first_token_seconds", &st.TTFT},
		{"vllm:inter_token_latency_seconds", &st.ITL},
		{"vllm:e2e_request_latency_seconds", &st.E2E},
		{"vllm:request_queue_time_seconds", &st.Queue},
		{"vllm:request_prefill_time_seconds", &st.Prefill},
		{"vllm:request_decode_time_seconds", &st.Decode},
	} {
		if c.Rank == 0 {
			b = append(b, "# TYPE "+h.name+" histogram\n"...)
		}
		total := int64(0)
		for i := range h.h.buckets {
			total += h.h.buckets[i].Load()
			le := "+Inf"
			if i < len(bounds) {
				le = strconv.FormatFloat(bounds[i], 'g', -1, 64)
			}
			number("", h.name+"_bucket", `,le="`+le+`"`, float64(total))
		}
		number("", h.name+"_sum", "", float64(h.h.micros.Load())/1e6)
		number("", h.name+"_count", "", float64(total))
	}
	return b
}

// AppendStart renders the start time of the process.
func AppendStart(b []byte, started time.Time) []byte {
	b = append(b, "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds "...)
	b = strconv.AppendFloat(b, float64(started.UnixNano())/1e9, 'f', 3, 64)
	return append(b, '\n')
}

// Histogram counts durations in buckets. It is safe for concurrent use.
type Histogram struct {
	buckets [bucketCount + 1]atomic.Int64
	micros  atomic.Int64
}

const bucketCount = 21

// bucketBounds returns the upper bounds of the buckets in seconds.
func bucketBounds() [bucketCount]float64 {
	return [...]float64{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640}
}

// Observe counts one duration.
func (h *Histogram) Observe(d time.Duration) {
	s, bounds := d.Seconds(), bucketBounds()
	i := 0
	for i < len(bounds) && s > bounds[i] {
		i++
	}
	h.buckets[i].Add(1)
	h.micros.Add(d.Microseconds())
}

// Stats has the metrics of one incarnation.
type Stats struct {
	PromptTokens, GenerationTokens atomic.Int64
	CacheQueries, CacheHits        atomic.Int64
	Stop, Length, Abort, Fail      atomic.Int64
	TTFT, ITL, E2E, Queue          Histogram
	Prefill, Decode                Histogram
}
