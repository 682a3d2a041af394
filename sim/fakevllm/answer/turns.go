package answer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"slices"
	"unicode/utf8"

	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
	"github.com/pdmesh/pdmesh/sim/fakevllm/request"
)

// Turn is a scripted answer of the model on the two routes of coding agents, /v1/messages and
// /v1/responses, so that an agent's conversation goes the way that a test wants. Its parts come
// in the order of the fields.
type Turn struct {
	Thinking string     `json:"thinking,omitempty"`
	Text     string     `json:"text,omitempty"`
	Calls    []ToolCall `json:"calls,omitempty"`
}

// ToolCall is a call of one of the tools that a request offers.
type ToolCall struct {
	Name  string          `json:"name"`
	Input json.RawMessage `json:"input"` // an object, said byte for byte
}

// errTurn is what is wrong with a Turn.
var errTurn = errors.New("invalid turn")

// ReadTurns reads a JSON list of turns.
func ReadTurns(r io.Reader) ([]Turn, error) {
	d := json.NewDecoder(r)
	d.DisallowUnknownFields()
	var list []Turn
	if err := d.Decode(&list); err != nil {
		return nil, fmt.Errorf("%w: %w", errTurn, err)
	}
	return list, CheckTurns(list)
}

// CheckTurns returns an error for a turn that cannot be answered.
func CheckTurns(list []Turn) error {
	for i, t := range list {
		if t.Thinking == "" && t.Text == "" && len(t.Calls) == 0 {
			return fmt.Errorf("%w: number %d says nothing", errTurn, i)
		}
		for _, c := range t.Calls {
			var input map[string]json.RawMessage
			if c.Name == "" || json.Unmarshal(c.Input, &input) != nil || input == nil {
				return fmt.Errorf("%w: number %d calls no tool, or with an input that is no object", errTurn, i)
			}
		}
	}
	return nil
}

// TurnOf returns the turn that answers a request: the one at the number of answers that its
// conversation already has. It returns nil after the last turn, for a request without tools or
// without one that the turn calls, and if a call is required.
func TurnOf(list []Turn, p *request.Request) *Turn {
	if p.Turn >= len(list) || len(p.Tools) == 0 || p.WantsCall() || p.API != request.Messages && p.API != request.Responses {
		return nil
	}
	t := &list[p.Turn]
	for _, c := range t.Calls {
		if !slices.ContainsFunc(p.Tools, func(offered request.Tool) bool { return offered.Name == c.Name }) {
			return nil
		}
	}
	return t
}

// partKind is what a part of an agent's answer is.
type partKind uint8

const (
	kindNone partKind = iota
	kindThinking
	kindText
	kindCall
)

// part is a part of an agent's answer, as far as it was said.
type part struct {
	kind     partKind
	id, name string // of a call
	text     string // of a call its arguments
}

// scripted is a turn as tokens.
type scripted struct {
	parts []part // without their text
	ids   []int
	said  []saying // what each token but the last adds
}

// saying is what a token adds to a part. The first token of a call adds nothing to it.
type saying struct {
	part int
	text string
}

func newScripted(t *Turn, prompt []int, choice int) *scripted {
	var o scripted
	add := func(text string) {
		for text != "" {
			piece := firstPiece(text)
			o.ids = append(o.ids, model.PieceID(piece))
			o.said = append(o.said, saying{len(o.parts) - 1, piece})
			text = text[len(piece):]
		}
	}
	begin := func(p part, text string) {
		if text != "" {
			o.parts = append(o.parts, p)
			add(text)
		}
	}
	begin(part{kind: kindThinking}, t.Thinking)
	begin(part{kind: kindText}, t.Text)
	g := model.NewGenerator(prompt, choice)
	for i, c := range t.Calls {
		x := model.Mix(g.Hash() + uint64(i))
		o.parts = append(o.parts, part{kind: kindCall, id: callID(x), name: c.Name})
		o.ids = append(o.ids, model.PieceID(c.Name))
		o.said = append(o.said, saying{part: len(o.parts) - 1})
		add(string(c.Input))
	}
	o.ids = append(o.ids, model.EOS)
	return &o
}

// firstPiece is the text of a text's first token, which ends between characters.
func firstPiece(text string) string {
	for i, r := range text {
		if i > 0 && (r == ' ' || i+utf8.RuneLen(r) > model.MaxPiece) {
			return text[:i]
		}
	}
	return text
}

// upTo is what was said with n tokens.
func (o *scripted) upTo(n int) []part {
	var out []part
	for _, s := range o.said[:min(n, len(o.said))] {
		if s.part == len(out) {
			out = append(out, o.parts[s.part])
		}
		out[s.part].text += s.text
	}
	return out
}

// said is what a lane has said so far, as parts.
func (ln *Lane) said() []part {
	switch {
	case ln.scripted != nil:
		return ln.scripted.upTo(ln.Seq.N)
	case len(ln.Seq.Text) > 0:
		return []part{{kind: kindText, text: string(ln.Seq.Text)}}
	}
	return nil
}

// parts are those of a whole answer: a call that was cut short is text there, as
// vLLM's parser of calls leaves it.
func (ln *Lane) parts() []part {
	out := ln.said()
	if last := len(out) - 1; ln.scripted != nil && !ln.calling && ln.Seq.Finish == "length" && last >= 0 && out[last].kind == kindCall {
		cut := out[last]
		out[last] = part{kind: kindText, text: "<tool_call>\n{\"name\": \"" + cut.name + "\", \"arguments\": " + cut.text}
	}
	return out
}

// newest is what the newest token adds; a part without kind is nothing.
func (ln *Lane) newest() (p part, index int) {
	switch i := ln.Seq.N; {
	case ln.scripted != nil:
		if i > len(ln.scripted.said) {
			return part{}, 0
		}
		s := ln.scripted.said[i-1]
		p = ln.scripted.parts[s.part]
		p.text = s.text
		return p, s.part
	default:
		if text := ln.Seq.Delta(); len(text) > 0 {
			return part{kind: kindText, text: string(text)}, 0
		}
	}
	return part{}, 0
}

// calls reports whether the answer of a lane holds a tool call that is whole.
func (ln *Lane) calls() bool {
	return ln.scripted != nil && ln.Seq.Finish == "stop" && slices.ContainsFunc(ln.scripted.parts, func(p part) bool { return p.kind == kindCall })
}

// newCall makes the tool call that a prompt gets when one is required, with a few words.
func newCall(prompt []int, p *request.Request, choice int) *scripted {
	g := model.NewGenerator(prompt, choice)
	x := model.Mix(g.Hash())
	name := p.ToolName
	if name == "" {
		hi, _ := bits.Mul64(x, uint64(len(p.Tools)))
		name = p.Tools[hi].Name
	}
	input := []byte(`{"text":"`)
	for range 3 + x%6 {
		id, _ := g.Next()
		g.Push(id)
		input = model.AppendWordJSON(input, id)
	}
	return newScripted(&Turn{Calls: []ToolCall{{Name: name, Input: append(input, `"}`...)}}}, prompt, choice)
}

func callID(x uint64) string { return "chatcmpl-tool-" + model.Hex16(x) + model.Hex16(model.Mix(x)) }

// Calling reports whether a lane's answer is a tool call that the request requires.
func (ln *Lane) Calling() bool { return ln.calling }

// ToolCall is that call as far as it was said.
func (ln *Lane) ToolCall() (name, arguments string) {
	p := ln.said()[0]
	return p.name, p.text
}
