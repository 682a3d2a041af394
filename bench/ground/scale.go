package ground

import "time"

// Shrink is how many tokens of the trace one token of ours represents: a replay
// costs the machine less, and prompts keep their proportions. A block of the trace
// has 512 tokens, so one of ours has 32.
const Shrink = 16

// blockTokens is a block of the trace in our tokens.
const blockTokens = 512 / Shrink

// Engine has the figures of one engine in the tokens and seconds of the trace.
type Engine struct {
	PrefillRate   float64 // prompt tokens a second
	LoadRate      float64 // tokens of KV cache that the network carries a second
	ITL           time.Duration
	ITLPerRequest time.Duration // of each further request in the batch
	ChunkTokens   int           // of a prompt that a decode step waits for
}

// DefaultEngine is a dense model of 70 billion parameters with grouped-query
// attention (Llama 3.1 70B: 80 layers, 8 KV heads of 128) on four H100 SXM, from
// public figures:
//
//   - prefill: 2 FLOP a parameter and token are 0.14 TFLOP; four times 989 TFLOP/s
//     (dense BF16) at 30 % of the peak are 8,500 tokens/s; 8,000 with attention.
//   - loading: 80 × 8 × 128 × 2 × 2 bytes are 328 kB of KV a token; 400 Gbit/s
//     carry 150,000 tokens/s.
//   - decode: 140 GB of weights at 70 % of four times 3.35 TB/s take 15 ms, and the
//     KV of a request of 12,000 tokens, the trace's mean, 0.4 ms.
//   - chunk: 2,048, vLLM's own default of max_num_batched_tokens.
func DefaultEngine() Engine {
	return Engine{PrefillRate: 8000, LoadRate: 150_000, ITL: 15 * time.Millisecond, ITLPerRequest: 400 * time.Microsecond, ChunkTokens: 2048}
}

// Limits are what a user still takes for good.
type Limits struct {
	TTFT time.Duration // to the first token
	ITL  time.Duration // mean time between tokens after it
}

// DefaultLimits let a reader wait five seconds, and then read twenty tokens a second.
func DefaultLimits() Limits { return Limits{TTFT: 5 * time.Second, ITL: 50 * time.Millisecond} }
