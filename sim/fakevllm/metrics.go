package fakevllm

import (
	"strconv"
	"sync/atomic"
	"time"

	"github.com/pdmesh/pdmesh/sim/fakevllm/jsontext"
)

// histogram counts seconds in the buckets below; safe for concurrent use.
type histogram struct {
	buckets [bucketCount + 1]atomic.Int64
	micros  atomic.Int64
}

const bucketCount = 21

// bucketBounds are the upper bounds in seconds.
func bucketBounds() [bucketCount]float64 {
	return [...]float64{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640}
}

func (h *histogram) observe(d time.Duration) {
	s, bounds := d.Seconds(), bucketBounds()
	i := 0
	for i < len(bounds) && s > bounds[i] {
		i++
	}
	h.buckets[i].Add(1)
	h.micros.Add(d.Microseconds())
}

// stats are the metrics of one life, under vLLM's names.
type stats struct {
	promptTokens, generationTokens atomic.Int64
	cacheQueries, cacheHits        atomic.Int64
	stop, length, abort, fail      atomic.Int64
	ttft, itl, e2e, queue          histogram
	prefill, decode                histogram
}

// metrics renders /metrics.
func (l *life) metrics() []byte {
	b := make([]byte, 0, 16<<10)
	for _, c := range l.cores {
		b = l.appendCore(b, c)
	}
	b = append(b, "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds "...)
	b = strconv.AppendFloat(b, float64(l.started.UnixNano())/1e9, 'f', 3, 64)
	return append(b, '\n')
}

// appendCore renders the metrics of one rank, under its label. Names are typed once.
func (l *life) appendCore(b []byte, c *core) []byte {
	labels := string(jsontext.AppendText([]byte(`model_name="`), l.server.opt.Models[0])) + `",engine="` + strconv.Itoa(c.rank) + `"`
	number := func(kind, name, extra string, v float64) {
		if kind != "" && c.rank == 0 {
			b = append(b, "# TYPE "+name+" "+kind+"\n"...)
		}
		b = append(b, name+"{"+labels+extra+"} "...)
		b = append(strconv.AppendFloat(b, v, 'g', -1, 64), '\n')
	}
	st, bounds := &c.stats, bucketBounds()
	number("gauge", "vllm:num_requests_running", "", float64(c.running.Load()))
	number("gauge", "vllm:num_requests_waiting", "", float64(c.waiting.Load()))
	number("gauge", "vllm:num_requests_waiting_by_reason", `,reason="capacity"`, float64(c.waiting.Load()))
	number("", "vllm:num_requests_waiting_by_reason", `,reason="deferred"`, float64(l.count.fetching.Load()))
	pinned, _ := c.ledger.Counts(time.Now())
	if l.transfers != nil {
		pinned, _ = l.transfers.Counts(time.Now())
	}
	usage, blocks := min(1, float64(c.running.Load()+pinned)/256), 65536
	if c.cache != nil {
		held := c.cache.Stats()
		usage, blocks = float64(held.Held)/float64(held.Blocks), held.Blocks
	}
	number("gauge", "vllm:kv_cache_usage_perc", "", usage)
	number("counter", "vllm:prefix_cache_queries_total", "", float64(st.cacheQueries.Load()))
	number("counter", "vllm:prefix_cache_hits_total", "", float64(st.cacheHits.Load()))
	number("counter", "vllm:prompt_tokens_total", "", float64(st.promptTokens.Load()))
	number("counter", "vllm:generation_tokens_total", "", float64(st.generationTokens.Load()))
	number("counter", "vllm:num_preemptions_total", "", 0)
	number("counter", "vllm:request_success_total", `,finished_reason="stop"`, float64(st.stop.Load()))
	number("", "vllm:request_success_total", `,finished_reason="length"`, float64(st.length.Load()))
	number("", "vllm:request_success_total", `,finished_reason="abort"`, float64(st.abort.Load()))
	number("", "vllm:request_success_total", `,finished_reason="error"`, float64(st.fail.Load()))
	number("gauge", "vllm:cache_config_info", `,block_size="`+strconv.Itoa(l.server.opt.BlockSize)+`",num_gpu_blocks="`+strconv.Itoa(blocks)+`"`, 1)
	if l.server.opt.Mode == NIXL { // they are there from the start of such an engine
		for _, name := range []string{"failed_transfers", "failed_notifications", "kv_expired_reqs", "notifications_after_expiry"} {
			number("counter", "vllm:nixl_num_"+name+"_total", "", 0)
		}
	}
	for _, h := range []struct {
		name string
		h    *histogram
	}{
		{"vllm:time_to_first_token_seconds", &st.ttft},
		{"vllm:inter_token_latency_seconds", &st.itl},
		{"vllm:e2e_request_latency_seconds", &st.e2e},
		{"vllm:request_queue_time_seconds", &st.queue},
		{"vllm:request_prefill_time_seconds", &st.prefill},
		{"vllm:request_decode_time_seconds", &st.decode},
	} {
		if c.rank == 0 {
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
