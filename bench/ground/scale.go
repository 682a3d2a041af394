package ground

import "time"

// Shrink is the number of tokens of the trace that one token of a replay represents. It
// reduces the work of the machine, and keeps the proportions of prompts. A block of the trace
// has 512 tokens, so a block of a replay has 32.
const Shrink = 16

// blockTokens is the number of tokens in a block of a replay.
const blockTokens = 512 / Shrink

// Engine has the speed of an engine, in tokens and seconds of the trace.
type Engine struct {
	PrefillRate   float64 // prompt tokens per second
	LoadRate      float64 // tokens of KV cache per second over the network
	ITL           time.Duration
	ITLPerRequest time.Duration // for each further request in the batch
	ChunkTokens   int           // of a prompt in one decode step
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
//   - chunk: 2,048, vLLM's default of max_num_batched_tokens.
func DefaultEngine() Engine {
	return Engine{PrefillRate: 8000, LoadRate: 150_000, ITL: 15 * time.Millisecond, ITLPerRequest: 400 * time.Microsecond, ChunkTokens: 2048}
}

// Limits are the limits of goodput.
type Limits struct {
	TTFT time.Duration // to the first token
	ITL  time.Duration // mean time between tokens after it
}

// DefaultLimits returns limits of 5 s to the first token, and then 20 tokens/s.
func DefaultLimits() Limits { return Limits{TTFT: 5 * time.Second, ITL: 50 * time.Millisecond} }
