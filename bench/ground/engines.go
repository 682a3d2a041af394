package ground

import (
	"context"
	"time"

	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// engines is a fleet of simulated engines in this process.
type engines struct {
	prefill, decode []*fakevllm.Server
}

// startEngines starts n engines of each role, which run speed times as fast as the trace.
func startEngines(ctx context.Context, n int, mode fakevllm.Mode, speed float64, e Engine, c Caches) (*engines, error) {
	shared := fakevllm.NewShared()
	out := new(engines)
	anyPort := "tcp://127.0.0.1:0"
	for i := range 2 * n {
		o := fakevllm.Options{
			Role: fakevllm.RolePrefill, Mode: mode, Models: []string{Served}, Shared: shared,
			BlockSize: c.BlockSize, CacheBlocks: c.Blocks, RecordLimit: fakevllm.RecordNone,
			PrefillRate: e.PrefillRate / Shrink * speed, LoadRate: e.LoadRate / Shrink * speed,
			ITL: scaled(e.ITL, speed), ITLPerRequest: scaled(e.ITLPerRequest, speed),
			ChunkTokens: max(1, e.ChunkTokens/Shrink), PromptTokensDetails: true, FineTokens: true,
			// A version that reports the endpoints of its KV events.
			Version:         "0.33.0",
			KVEvents:        &fakevllm.KVEvents{Enabled: true, Endpoint: anyPort, ReplayEndpoint: &anyPort},
			RewrittenParams: true, // other routers decode and encode transfer params
			// Other routers keep idle connections longer than uvicorn, and then lose requests.
			// This benchmark does not measure that.
			IdleTimeout: time.Minute,
		}
		if i >= n {
			o.Role = fakevllm.RoleDecode
		}
		s, err := fakevllm.Start(ctx, o)
		if err != nil {
			out.close()
			return nil, err
		}
		if i < n {
			out.prefill = append(out.prefill, s)
		} else {
			out.decode = append(out.decode, s)
		}
	}
	return out, nil
}

// scaled converts a time between tokens of the trace to one between tokens of the replay.
func scaled(d time.Duration, speed float64) time.Duration {
	return time.Duration(float64(d) * Shrink / speed)
}

func (e *engines) close() {
	for _, s := range e.all() {
		s.Close()
	}
}

func (e *engines) all() []*fakevllm.Server {
	return append(append([]*fakevllm.Server(nil), e.prefill...), e.decode...)
}

func addresses(list []*fakevllm.Server) []string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = s.Address()
	}
	return out
}

// caches returns the sums of looked-up and found tokens of the prefill engines, and the
// number of tokens that each has computed.
func (e *engines) caches() (queries, hits int64, computed []int64) {
	for _, s := range e.prefill {
		c := s.Counters()
		queries, hits = queries+c.CacheQueries, hits+c.CacheHits
		computed = append(computed, c.ComputedTokens)
	}
	return queries, hits, computed
}

// local returns the number of prompts that decode engines computed.
func (e *engines) local() (n int64) {
	for _, s := range e.decode {
		n += s.Counters().LocalPrefills
	}
	return n
}
