package ground

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/pdmesh/pdmesh/bench/answer"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/loadgen"
)

// Request is one of a workload.
type Request struct {
	At       time.Duration // from the start, in the time of the trace
	Session  string        // what a client would call the conversation
	Messages []fakevllm.Message
	Output   int // tokens
}

// Workload is recorded traffic as chats.
type Workload struct {
	Requests []Request
	Length   time.Duration
}

// Part is which half of a trace is meant.
type Part string

// The parts: policies are tuned on the first, and told of on the second.
const (
	First  Part = "first"
	Second Part = "second"
	Whole  Part = "whole"
)

// NewWorkload makes chats of a part of a trace. rate sends them so many times closer
// together. At most limit requests are taken, all if it is 0.
func NewWorkload(entries []loadgen.Entry, part Part, rate float64, limit int) (*Workload, error) {
	half := len(entries) / 2
	switch part {
	case First:
		entries = entries[:half]
	case Second:
		entries = entries[half:]
	case Whole:
	default:
		return nil, fmt.Errorf("part %q: use %s, %s or %s", part, First, Second, Whole)
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

// spread returns the entries' times in milliseconds. The trace has them in steps of
// three seconds; what came in one step is spread over it evenly.
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

// session is the second block of a prompt: the first is the same for all.
func session(e *loadgen.Entry) string {
	return strconv.FormatInt(e.HashIDs[min(1, len(e.HashIDs)-1)], 10)
}

// turnBlocks is how many blocks of the trace one message has.
const turnBlocks = 8

// messages are the chat of an entry: its first block says what the model is for, the
// others are turns. Prompts that begin with the same blocks begin with the same
// text, and with the same messages but for the last one, which may go on.
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

// appendBlock appends the first n words of a block, each of them one token of one to
// seven bytes, so that blocks differ in bytes.
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

// Body is the request as a client sends it.
func (r *Request) Body() []byte {
	b := append([]byte(`{"model":"`+Served+`","messages":`), r.chat()...)
	b = strconv.AppendInt(append(b, `,"max_tokens":`...), int64(r.Output), 10)
	return append(b, `,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true}}`...)
}

// chat is the value of "messages".
func (r *Request) chat() []byte {
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	list := make([]message, len(r.Messages))
	for i, m := range r.Messages {
		list[i] = message{m.Role, m.Content}
	}
	b, err := json.Marshal(list)
	if err != nil {
		panic(err) // they are texts
	}
	return b
}

// Served is the name of the model.
const Served = answer.Model

// Prompt is what the engines make of the chat.
func (r *Request) Prompt() []int { return fakevllm.ChatPrompt(r.Messages, false) }

// expected is the one right answer.
func (r *Request) expected() loadgen.Expected {
	a := fakevllm.ExpectedCompletion(r.Prompt(), fakevllm.Sampling{MaxTokens: r.Output, IgnoreEOS: true})
	return loadgen.Expected{Text: []byte(a.Text), PromptTokens: a.PromptTokens, CompletionTokens: len(a.Tokens), FinishReason: a.FinishReason}
}
