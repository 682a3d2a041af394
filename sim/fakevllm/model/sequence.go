package model

import (
	"math/bits"
	"slices"
)

// eosEvery is the mean number of tokens of an answer that nothing else ends.
const eosEvery = 256

// Generator yields the tokens that follow a sequence of tokens.
// Each is a pure function of all tokens before it, prompt and answer alike, so
// that a generation continued elsewhere from prompt and partial answer goes on
// with exactly the remaining tokens. The zero value is not usable; see
// NewGenerator. Next and Push cost a few nanoseconds and never allocate.
type Generator struct {
	state uint64
}

// NewGenerator starts after a prompt. Choice numbers the n answers of one
// request from 0.
func NewGenerator(prompt []int, choice int) Generator {
	g := Generator{state: 0x9e3779b97f4a7c15}
	for _, id := range prompt {
		g.Push(id)
	}
	if choice > 0 {
		g.state = Mix(g.state ^ uint64(choice)*0xd1342543de82ef95)
	}
	return g
}

// Push appends a token to the sequence.
func (g *Generator) Push(id int) {
	s := (g.state ^ uint64(id)) * 0xff51afd7ed558ccd
	g.state = s ^ s>>32
}

// Next proposes the token that follows and whether it would rather end here;
// it doesn't change the sequence. A caller that must not end takes the token.
func (g *Generator) Next() (id int, eos bool) {
	x := Mix(g.state)
	hi, lo := bits.Mul64(x, VocabSize-FirstTextToken)
	return FirstTextToken + int(hi), lo>>20%eosEvery == 0
}

// Hash identifies the sequence so far.
func (g *Generator) Hash() uint64 { return Mix(g.state ^ 0x632be59bd9b4e019) }

// Sampling holds the parameters of a request that change its answer. The
// simulated model has no randomness, so temperature and its like do not.
type Sampling struct {
	MaxTokens    int // at least 1
	MinTokens    int
	IgnoreEOS    bool
	Stop         []string
	StopTokenIDs []int
	IncludeStop  bool // include_stop_str_in_output
	Choice       int  // which of n answers
}

// Answer is what the model says to a prompt.
type Answer struct {
	Text         string
	Tokens       []int  // includes the EOS or stop token that ended it, as vLLM counts them
	FinishReason string // "stop" or "length"; "tool_calls" for a required tool call
	StopReason   any    // nil, the stop string, or the stop token id (int)
	PromptTokens int
	// ToolName and ToolArguments are set when the answer is a tool call; Text
	// is empty then.
	ToolName      string
	ToolArguments string
}

// Sequence runs one answer token by token.
type Sequence struct {
	gen    Generator
	s      *Sampling
	N      int    // tokens so far
	Text   []byte // whole text so far; kept only when keepText
	sent   int    // bytes of text already handed out by delta
	hold   int    // bytes held back while a stop string may still complete
	Keep   bool
	Reason any
	Finish string
}

// NewSequence returns the answer to a prompt, before its first token.
func NewSequence(prompt []int, s *Sampling, keepText bool) Sequence {
	q := Sequence{gen: NewGenerator(prompt, s.Choice), s: s, Keep: keepText || len(s.Stop) > 0}
	for _, stop := range s.Stop {
		if !s.IncludeStop {
			q.hold = max(q.hold, len(stop)-1)
		}
	}
	return q
}

// Step makes the next token. After it, finish is non-empty when the answer is
// complete, and text reports whether the token's word belongs to the text.
func (q *Sequence) Step() (id int, text bool) {
	id, eos := q.gen.Next()
	mayStop := q.N >= q.s.MinTokens
	if eos && mayStop && !q.s.IgnoreEOS {
		q.N++
		q.Finish = "stop"
		return EOS, false
	}
	if len(q.s.StopTokenIDs) > 0 && contains(q.s.StopTokenIDs, id) {
		if mayStop {
			q.N++
			q.Finish, q.Reason = "stop", id
			if q.s.IncludeStop && q.Keep {
				q.Text = AppendWord(q.Text, id)
			}
			return id, q.s.IncludeStop
		}
		// Before min_tokens the stop tokens cannot be sampled at all.
		for contains(q.s.StopTokenIDs, id) {
			id = FirstTextToken + (id+1-FirstTextToken)%(VocabSize-FirstTextToken)
		}
	}
	q.N++
	q.gen.Push(id)
	if q.Keep {
		before := len(q.Text)
		q.Text = AppendWord(q.Text, id)
		if len(q.s.Stop) > 0 && q.N > q.s.MinTokens {
			q.checkStop(before)
		}
	}
	if q.Finish == "" && q.N >= q.s.MaxTokens {
		q.Finish = "length"
	}
	return id, true
}

// checkStop looks for the first stop string that ends in what was added after
// offset before, and cuts the text there.
func (q *Sequence) checkStop(before int) {
	best, which := -1, ""
	for _, stop := range q.s.Stop {
		from := max(0, before-len(stop)+1)
		if i := indexFrom(q.Text, stop, from); i >= 0 && (best < 0 || i < best) {
			best, which = i, stop
		}
	}
	if best < 0 {
		return
	}
	q.Finish, q.Reason = "stop", which
	if q.s.IncludeStop {
		best += len(which)
	}
	q.Text = q.Text[:best]
}

// Delta is the text that became ready since the last call; only with keep.
func (q *Sequence) Delta() []byte {
	ready := len(q.Text)
	if q.Finish == "" {
		ready = runeStart(q.Text, max(q.sent, ready-q.hold))
	}
	if ready <= q.sent {
		return nil
	}
	d := q.Text[q.sent:ready]
	q.sent = ready
	return d
}

// runeStart moves i back to a rune boundary: text is handed out in whole
// characters only.
func runeStart(b []byte, i int) int {
	for i > 0 && i < len(b) && b[i]&0xc0 == 0x80 {
		i--
	}
	return i
}

func indexFrom(text []byte, sub string, from int) int {
	for i := from; i+len(sub) <= len(text); i++ {
		if string(text[i:i+len(sub)]) == sub {
			return i
		}
	}
	return -1
}

func contains(ids []int, id int) bool {
	return slices.Contains(ids, id)
}

// Generate runs a sequence to its end.
func Generate(prompt []int, s Sampling) Answer {
	q := NewSequence(prompt, &s, true)
	a := Answer{PromptTokens: len(prompt), Tokens: make([]int, 0, min(s.MaxTokens, 512))}
	for q.Finish == "" {
		id, _ := q.Step()
		a.Tokens = append(a.Tokens, id)
	}
	a.Text, a.FinishReason, a.StopReason = string(q.Text), q.Finish, q.Reason
	return a
}
