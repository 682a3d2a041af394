package ground

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/pdmesh/pdmesh/bench/answer"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/fakevllm/kvcache"
	"github.com/pdmesh/pdmesh/sim/loadgen"
)

// Request is a request of a workload.
type Request struct {
	At       time.Duration // since the start, in time of the trace
	Session  string        // ID of the conversation
	Messages []fakevllm.Message
	Output   int // tokens
}

// Workload is a recorded trace, as chats.
type Workload struct {
	Requests []Request
	Length   time.Duration
}

// Part is a part of a trace.
type Part string

// The parts. Policies are tuned with the first half, and the figures are those of the second.
const (
	First  Part = "first"
	Second Part = "second"
	Whole  Part = "whole"
)

// NewWorkload returns a part of a trace as chats. rate multiplies the request rate. limit is
// the largest number of requests; 0 means all.
func NewWorkload(entries []loadgen.Entry, part Part, rate float64, limit int) (*Workload, error) {
	half := len(entries) / 2
	switch part {
	case First:
		entries = entries[:half]
	case Second:
		entries = entries[half:]
	case Whole:
	default:
		return nil, fmt.Errorf("part %q: must be %s, %s or %s", part, First, Second, Whole)
	}
	if len(entries) == 0 {
		return nil, fmt.Errorf("part %q of the trace has no request", part)
	}
	if limit > 0 && limit < len(entries) {
		entries = entries[:limit]
	}
	w := &Workload{Requests: make([]Request, 0, len(entries))}
	start := entries[0].Timestamp
	for i, at := range spread(entries) {
		e := &entries[i]
		w.Requests = append(w.Requests, Request{
			At: time.Duration((at - float64(start)) / rate * float64(time.Millisecond)), Session: session(e),
			Messages: messages(e), Output: max(1, (e.OutputLength+Shrink/2)/Shrink),
		})
	}
	w.Length = w.Requests[len(w.Requests)-1].At
	return w, nil
}

// spread returns the times of the entries in milliseconds. The trace has steps of three
// seconds; the requests of a step are distributed evenly over it.
func spread(entries []loadgen.Entry) []float64 {
	const step = 3000
	at := make([]float64, len(entries))
	for from := 0; from < len(entries); {
		to := from
		for to < len(entries) && entries[to].Timestamp == entries[from].Timestamp {
			to++
		}
		for i := from; i < to; i++ {
			at[i] = float64(entries[from].Timestamp) + step*float64(i-from)/float64(to-from)
		}
		from = to
	}
	return at
}

// session returns the second block of a prompt; the first one is the same in all prompts.
func session(e *loadgen.Entry) string {
	return strconv.FormatInt(e.HashIDs[min(1, len(e.HashIDs)-1)], 10)
}

// turnBlocks is the number of blocks of a message.
const turnBlocks = 8

// messages returns the chat of an entry: the first block is the system message, the others are
// turns. Prompts that begin with the same blocks begin with the same text, and with the same
// messages except for the last one, which may be longer.
func messages(e *loadgen.Entry) []fakevllm.Message {
	tokens := max(1, (e.InputLength+Shrink/2)/Shrink)
	out := []fakevllm.Message{{Role: "system"}}
	var text []byte
	for i, block := range e.HashIDs {
		n := blockTokens
		if i == len(e.HashIDs)-1 {
			n = max(1, min(blockTokens, tokens-i*blockTokens))
		}
		if i > 0 && (i-1)%turnBlocks == 0 {
			out[len(out)-1].Content = string(text)
			text = text[:0]
			role := "user"
			if len(out)%2 == 0 {
				role = "assistant"
			}
			out = append(out, fakevllm.Message{Role: role})
		}
		text = appendBlock(text, block, n)
	}
	out[len(out)-1].Content = string(text)
	return out
}

// appendBlock appends the first n words of a block. A word is one token of one to seven bytes.
func appendBlock(dst []byte, block int64, n int) []byte {
	for i := range n {
		x := loadgen.BlockToken(block, i, 0, 1<<40)
		dst = append(dst, ' ')
		for range x % 7 {
			x /= 7
			dst = append(dst, 'a'+byte(x%26))
			x /= 4
		}
	}
	return dst
}

// Body returns the body that a client sends.
func (r *Request) Body() []byte {
	b := append([]byte(`{"model":"`+Served+`","messages":`), r.chat()...)
	b = strconv.AppendInt(append(b, `,"max_tokens":`...), int64(r.Output), 10)
	return append(b, `,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true}}`...)
}

// chat returns the value of "messages".
func (r *Request) chat() []byte {
	b, err := json.Marshal(r.Messages)
	if err != nil {
		panic(err) // strings can be encoded
	}
	return b
}

// Served is the name of the served model.
const Served = answer.Model

// Prompt returns the tokens of the chat.
func (r *Request) Prompt() []int { return fakevllm.ChatPrompt(r.Messages, false) }

// expected returns the correct response.
func (r *Request) expected() loadgen.Expected {
	a := fakevllm.ExpectedCompletion(r.Prompt(), fakevllm.Sampling{MaxTokens: r.Output, IgnoreEOS: true})
	return loadgen.Expected{Text: []byte(a.Text), PromptTokens: a.PromptTokens, CompletionTokens: len(a.Tokens), FinishReason: a.FinishReason}
}

// Caches is the size of the caches.
type Caches struct {
	BlockSize int // tokens of a replay
	Blocks    int // in one engine
}

// blockSize is vLLM's default of 16 tokens.
const blockSize = 16

// NewCaches returns caches for n engines that have size times the distinct blocks of the
// workload together.
func NewCaches(w *Workload, n int, size float64) Caches {
	distinct := 0
	all := kvcache.New(kvcache.Config{BlockSize: blockSize, Blocks: w.tokens()/blockSize + len(w.Requests), Notify: func(e kvcache.Event) { distinct += len(e.Hashes) }})
	fill(w, all)
	return Caches{BlockSize: blockSize, Blocks: max(1, int(size*float64(distinct+n)/float64(n)))}
}

// tokens returns the number of tokens of all prompts.
func (w *Workload) tokens() int {
	sum := 0
	for i := range w.Requests {
		sum += len(w.Requests[i].Prompt())
	}
	return sum
}

// fill computes all prompts with one cache, in their order.
func fill(w *Workload, cache *kvcache.Cache) {
	for i := range w.Requests {
		if h := cache.TryTake(w.Requests[i].Prompt(), ""); h != nil {
			h.Computed()
			h.Free()
		}
	}
}

// SharedHits returns the hit ratio of one cache of the size of all caches, if each prompt is
// computed immediately. No router can exceed it by much.
func SharedHits(w *Workload, c Caches, engines int) float64 {
	cache := kvcache.New(kvcache.Config{BlockSize: c.BlockSize, Blocks: c.Blocks * engines})
	fill(w, cache)
	s := cache.Stats()
	return float64(s.Hits) / float64(s.Queries)
}

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
