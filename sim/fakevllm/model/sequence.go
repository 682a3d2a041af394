package model

import (
	"bytes"
	"math/bits"
	"slices"
	"unicode/utf8"
)

const (
	// eosEvery is the mean number of tokens of an answer that ends with EOS.
	eosEvery = 256
	// splitEvery is the mean number of words between characters that are split over tokens.
	splitEvery = 6
)

// Generator yields the tokens that follow a sequence of tokens.
// Each token is a pure function of all tokens before it, in prompt and answer.
// If another engine continues a partial answer, it generates exactly the remaining
// tokens. The zero value is not usable; see NewGenerator. Next and Push take a few
// nanoseconds and never allocate.
type Generator struct {
	state uint64
	half  int  // missing bytes of the last character
	Split bool // some characters come as one token per byte
}

// NewGenerator returns a generator of the tokens after a prompt. choice is the
// number of the answer among the n answers to the request, from 0.
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
	switch b := id - FirstByte; {
	case b < 0xc0:
		g.half = max(0, g.half-1)
		if b < 0x80 {
			g.half = 0
		}
	case b < 0xe0:
		g.half = 1
	case b < 0xf0:
		g.half = 2
	default:
		g.half = 3
	}
}

// Next returns the next token, and reports whether the model would end the answer
// instead. A caller that must not end uses the token. Next does not change the sequence.
func (g *Generator) Next() (id int, eos bool) {
	x := Mix(g.state)
	switch {
	case g.half == 3: // 0xf0 and 0x9f begin emoji and other pictographs
		return FirstByte + 0x9f, false
	case g.half > 0:
		return FirstByte + 0x80 + int(x%64), false
	case g.Split && x>>8%splitEvery == 0:
		return FirstByte + []int{0xc3, 0xe6, 0xf0}[x>>20%3], false
	}
	_, lo := bits.Mul64(x, VocabSize-FirstTextToken)
	return word(x), lo>>20%eosEvery == 0
}

// Whole reports whether the sequence ends in a whole character.
func (g *Generator) Whole() bool { return g.half == 0 }

// Hash identifies the sequence so far.
func (g *Generator) Hash() uint64 { return Mix(g.state ^ 0x632be59bd9b4e019) }

// Sampling holds the parameters of a request that change its answer. The
// simulated model has no randomness, so temperature has no effect.
type Sampling struct {
	MaxTokens    int // at least 1
	MinTokens    int
	IgnoreEOS    bool
	Stop         []string
	StopTokenIDs []int
	IncludeStop  bool // include_stop_str_in_output
	Choice       int  // which of n answers
	// Split makes the model write some characters as one token per byte, as all models do
	// with characters that have no token.
	Split bool
	// Restarts makes the answer depend on where the prompt ends, as seeds and penalties
	// on the output do.
	Restarts bool
	// Plan has the first tokens of the answer; the model generates the rest.
	Plan []int
}

// Answer is the model's answer to a prompt.
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
	// Reasoning, Text and Calls are the parts into which parsers split an answer.
	Reasoning string
	Calls     []Call
}

// Call is a tool call that the model has chosen to make.
type Call struct{ Name, Arguments string }

// Sequence generates one answer token by token.
type Sequence struct {
	gen    Generator
	s      *Sampling
	N      int    // tokens so far
	Text   []byte // whole text so far; only with Keep
	sent   int    // bytes of text that Delta has returned
	hold   int    // characters held back while a stop string may still complete
	plan   []int  // remaining tokens of the plan
	Keep   bool
	Reason any
	Finish string
}

// NewSequence returns the answer to a prompt, before its first token. If the prompt ends within a character,
// the text of the answer begins with the whole text of the prompt. In vLLM, the DecodeStream has no prefix
// then (v1/engine/detokenizer.py, FastIncrementalDetokenizer).
func NewSequence(prompt []int, s *Sampling, keepText bool) Sequence {
	q := Sequence{gen: NewGenerator(prompt, s.Choice), s: s, plan: s.Plan, Keep: keepText || len(s.Stop) > 0 || s.Split || len(s.Plan) > 0}
	q.gen.Split = s.Split
	if s.Restarts {
		q.gen.state = Mix(q.gen.state ^ 0x94d049bb133111eb)
	}
	for _, stop := range s.Stop {
		if !s.IncludeStop {
			q.hold = max(q.hold, utf8.RuneCountInString(stop)-1)
		}
	}
	if n := len(prompt); n > 0 && prompt[n-1] >= FirstByte+utf8.RuneSelf {
		if text := []byte(Detokenize(prompt)); whole(text) < len(text) {
			q.Text, q.Keep = text, true
		}
	}
	return q
}

// propose returns the next token of the plan, or else of the model.
func (q *Sequence) propose() (id int, eos bool) {
	if len(q.plan) == 0 {
		return q.gen.Next()
	}
	id, q.plan = q.plan[0], q.plan[1:]
	if id != EOS {
		return id, false
	}
	id, _ = q.gen.Next()
	return id, true
}

// Step generates the next token. Finish is set if the answer is complete then.
// text reports whether the token's word belongs to the text.
func (q *Sequence) Step() (id int, text bool) {
	id, eos := q.propose()
	mayStop := q.N >= q.s.MinTokens
	if eos && mayStop {
		if !q.s.IgnoreEOS {
			q.N++
			q.end("stop")
			return EOS, false
		}
		id = EOS // like any special token, EOS has no text
	}
	if slices.Contains(q.s.StopTokenIDs, id) {
		if mayStop {
			q.N++
			q.Reason = id
			if q.s.IncludeStop && q.Keep {
				q.Text = AppendWord(q.Text, id)
			}
			q.end("stop")
			return id, q.s.IncludeStop
		}
		// Before min_tokens the stop tokens cannot be sampled at all.
		for slices.Contains(q.s.StopTokenIDs, id) {
			id = FirstTextToken + (id+1-FirstTextToken)%(FirstByte-FirstTextToken)
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
		q.end("length")
	}
	return id, true
}

// end finishes the answer. It drops an incomplete character at the end, as vLLM does.
func (q *Sequence) end(reason string) {
	q.Finish = reason
	q.Text = q.Text[:whole(q.Text)]
}

// checkStop finds the first stop string that ends in the text added after offset
// before, and cuts the text there.
func (q *Sequence) checkStop(before int) {
	best, which := -1, ""
	for _, stop := range q.s.Stop {
		from := max(0, before-len(stop)+1)
		if i := bytes.Index(q.Text[from:], []byte(stop)); i >= 0 && (best < 0 || from+i < best) {
			best, which = from+i, stop
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

// Delta returns the text that became ready since the last call; only with Keep.
func (q *Sequence) Delta() []byte {
	ready := len(q.Text)
	if q.Finish == "" {
		ready = whole(q.Text)
		for range q.hold {
			_, n := utf8.DecodeLastRune(q.Text[:ready])
			ready -= n
		}
	}
	if ready <= q.sent {
		return nil
	}
	d := q.Text[q.sent:ready]
	q.sent = ready
	return d
}

// whole returns the length of a text without an incomplete character at its end.
func whole(b []byte) int {
	for i := len(b) - 1; i >= max(0, len(b)-utf8.UTFMax); i-- {
		if utf8.RuneStart(b[i]) {
			if !utf8.FullRune(b[i:]) {
				return i
			}
			break
		}
	}
	return len(b)
}

// Generate returns the complete answer to a prompt.
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
