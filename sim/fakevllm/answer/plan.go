package answer

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
	"github.com/pdmesh/pdmesh/sim/fakevllm/request"
)

// Model has the settings of an engine's model. The zero value generates words and has no parsers.
type Model struct {
	Split     bool   // see model.Sampling
	Reasoning string // vLLM's --reasoning-parser, "" for none; with deepseek_r1, the template opens the reasoning
	Tools     string // vLLM's --tool-call-parser, "" for none
	Words     int    // mean number of words of the reasoning, the content and the arguments of a chat with parsers; default 24
}

// parses reports whether the chats of the model are split into reasoning, content and calls.
func (m *Model) parses() bool { return m.Reasoning != "" || m.Tools != "" }

// planner writes the beginning of an answer.
type planner struct {
	g     model.Generator
	words int // mean number of words of a part
	ids   []int
}

func (m *Model) planner(prompt []int, choice int) *planner {
	p := &planner{g: model.NewGenerator(prompt, choice), words: cmp.Or(m.Words, 24)}
	p.g.Split = m.Split
	return p
}

// part writes several words; with quoted, only words that need no escapes in a JSON string.
func (p *planner) part(quoted bool) {
	n := 1 + p.words/2 + int(p.g.Hash()%uint64(p.words)) //nolint:gosec // a small number
	for n > 0 || !p.g.Whole() {
		id, _ := p.g.Next()
		p.g.Push(id)
		if quoted && bytes.ContainsAny(model.AppendWord(nil, id), "\"\\\n") {
			continue
		}
		p.ids = append(p.ids, id)
		n--
	}
}

// spell writes a text as tokens of one byte.
func (p *planner) spell(text string) { p.ids = model.AppendBytes(p.ids, text) }

// object writes a JSON object as json.dumps does.
func (p *planner) object() {
	p.spell(`{"text": "`)
	p.part(true)
	p.spell(`"}`)
}

// plan returns the first tokens of an answer; nil if the model generates all of them. A structured answer
// ignores how the prompt ends, since vLLM's grammars do not advance over the prompt. In a chat with
// parsers, the plan depends on the prompt up to the assistant's turn. If the turn already has a beginning
// of the plan, plan returns the rest; if the model would not have written it, nil.
func (j *Reply) plan(prompt []int, choice int) []int {
	turn := 0
	if j.API == request.Chat || j.API == request.Completions {
		turn = request.Turn(prompt)
	}
	thinks := j.API == request.Chat && j.Model.Reasoning != "" && !reasoningEnded(prompt)
	switch {
	case j.JSON && !thinks:
		p := j.Model.planner(prompt, choice)
		p.object()
		return append(p.ids, model.EOS)
	case !j.Model.parses() || turn == 0:
		return nil
	}
	p := j.Model.planner(prompt[:turn], choice)
	if j.Model.Reasoning != "" {
		if j.Model.Reasoning != "deepseek_r1" {
			p.ids = append(p.ids, model.Think)
		}
		p.part(false)
		p.ids = append(p.ids, model.EndThink)
	}
	if j.JSON {
		p.object()
	} else {
		p.part(false)
		p.calls(j)
	}
	p.ids = append(p.ids, model.EOS)
	written := prompt[turn:]
	if len(written) >= len(p.ids) || !slices.Equal(p.ids[:len(written)], written) {
		return nil
	}
	return p.ids[len(written):]
}

// calls writes up to two tool calls, if the request leaves the choice to the model.
func (p *planner) calls(j *Reply) {
	if j.Model.Tools == "" || len(j.Tools) == 0 || j.ToolChoice != "auto" {
		return
	}
	x := p.g.Hash()
	for i := range x % 3 {
		if i > 0 {
			p.spell("\n")
		}
		p.ids = append(p.ids, model.ToolCall)
		p.spell("\n{\"name\": \"" + j.Tools[(x>>8+i)%uint64(len(j.Tools))].Name + "\", \"arguments\": ")
		p.object()
		p.spell("}\n")
		p.ids = append(p.ids, model.EndToolCall)
	}
}

// reasoningEnded reports whether a prompt ends after the reasoning of its last turn (vLLM,
// reasoning/basic_parsers.py, is_reasoning_end).
func reasoningEnded(ids []int) bool {
	for _, id := range slices.Backward(ids) {
		switch id {
		case model.Think:
			return false
		case model.EndThink:
			return true
		}
	}
	return false
}
