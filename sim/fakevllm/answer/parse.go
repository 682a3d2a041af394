package answer

import (
	"encoding/json"
	"regexp"
	"strings"

	"github.com/pdmesh/pdmesh/sim/fakevllm/jsontext"
	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
	"github.com/pdmesh/pdmesh/sim/fakevllm/request"
)

// Tags in the text of an answer.
const (
	tagThink       = "<think>"
	tagEndThink    = "</think>"
	tagToolCall    = "<tool_call>"
	tagEndToolCall = "</tool_call>"
)

// parser splits the text of a chat into reasoning, content and tool calls, as vLLM's reasoning
// parsers and its hermes tool parser do (vLLM 0.32, parser/abstract_parser.py,
// tool_parsers/hermes_tool_parser.py). The prompt only determines whether the reasoning has
// ended; the rest of the state begins empty.
type parser struct {
	thinks  bool   // the reasoning has not ended
	pending string // text of the reasoning that may be the beginning of a tag
	tools   bool   // calls are parsed
	text    string // all text after the reasoning; only with tools
	sent    int    // bytes of content sent
	calls   []parsedCall
	seed    uint64 // seed of the ids of calls

	counts    bool // the next token is a reasoning token
	reasoning int  // number of reasoning tokens
}

// parsedCall is the part of a tool call that was sent.
type parsedCall struct{ id, name, args string }

// delta is the output for a piece of text.
type delta struct {
	reasoning, content string
	calls              []callDelta
}

// callDelta is the name of a new call, or more of a call's arguments.
type callDelta struct {
	index          int
	id, name, args string
}

func (d *delta) empty() bool { return d.reasoning == "" && d.content == "" && len(d.calls) == 0 }

// newParser returns nil for a request whose answer is not parsed.
func (j *Reply) newParser(ln *Lane) *parser {
	if j.API != request.Chat || !j.Model.parses() || ln.calling {
		return nil
	}
	prompt := j.Prompts[ln.Prompt]
	g := model.NewGenerator(prompt, ln.Index)
	return &parser{
		thinks: j.Model.Reasoning != "" && !reasoningEnded(prompt),
		tools:  j.Model.Tools != "" && j.ToolChoice == "auto",
		seed:   g.Hash(),
		counts: j.Model.Reasoning == "qwen3" && !reasoningEnded(prompt),
	}
}

// count counts the reasoning tokens of an event with this text, as vLLM does. Its qwen3 parser counts tokens
// that show text (parser/engine/token_id_scanner.py). Its deepseek_r1 parser counts tokens after a <think> in
// the answer, but the template has already written the <think> (reasoning/basic_parsers.py).
func (p *parser) count(ids []int, text string) {
	for _, id := range ids {
		switch {
		case id == model.Think, id == model.EndThink:
			p.counts = id == model.Think
		case p.counts && text != "":
			p.reasoning++
		}
	}
}

// feed parses more text.
func (p *parser) feed(text string, finished bool) (d delta) {
	if p.thinks {
		text = p.reason(&d, text, finished)
	}
	if !p.tools {
		d.content = text
		return d
	}
	p.text += text
	p.advance(&d)
	return d
}

// reason parses text of the reasoning and returns the text after it.
func (p *parser) reason(d *delta, text string, finished bool) (rest string) {
	p.pending = strings.Replace(p.pending+text, tagThink, "", 1)
	reasoning, rest, ended := strings.Cut(p.pending, tagEndThink)
	p.thinks, p.pending = !ended, ""
	if !ended && !finished {
		n := len(reasoning) - max(overlap(reasoning, tagThink), overlap(reasoning, tagEndThink))
		reasoning, p.pending = reasoning[:n], reasoning[n:]
	}
	d.reasoning = reasoning
	return rest
}

// overlap returns the number of bytes at the end of a text that may begin a tag.
func overlap(text, tag string) int {
	for n := min(len(text), len(tag)-1); n > 0; n-- {
		if strings.HasSuffix(text, tag[:n]) {
			return n
		}
	}
	return 0
}

var (
	nameInCall = regexp.MustCompile(`"name"\s*:\s*"([^"]+)"`)
	argsInCall = regexp.MustCompile(`"arguments"\s*:\s*`)
)

// advance finds content and calls in the whole text, and adds the unsent parts to d.
func (p *parser) advance(d *delta) {
	ready := strings.Index(p.text, tagToolCall)
	if ready < 0 {
		ready = len(p.text) - overlap(p.text, tagToolCall)
	}
	if ready > p.sent {
		d.content, p.sent = p.text[p.sent:ready], ready
	}
	for i, rest := 0, p.text; ; i++ {
		_, body, found := strings.Cut(rest, tagToolCall)
		if !found {
			return
		}
		body, rest, found = strings.Cut(body, tagEndToolCall)
		if !found {
			body = body[:len(body)-overlap(body, tagEndToolCall)]
		}
		body = strings.TrimSpace(body)
		if i == len(p.calls) {
			name := nameInCall.FindStringSubmatch(body)
			if name == nil {
				return
			}
			x := model.Mix(p.seed + uint64(i))
			p.calls = append(p.calls, parsedCall{id: callID(x), name: name[1]})
			d.calls = append(d.calls, callDelta{index: i, id: p.calls[i].id, name: name[1]})
		}
		if at := argsInCall.FindStringIndex(body); at != nil {
			args := body[at[1]:]
			if found || json.Valid([]byte(body)) {
				args = strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(args), "}"))
			}
			if c := &p.calls[i]; len(args) > len(c.args) {
				d.calls = append(d.calls, callDelta{index: i, args: args[len(c.args):]})
				c.args = args
			}
		}
		if !found {
			return
		}
	}
}

// render appends the members of the object "delta".
func (d *delta) render(b []byte) []byte {
	open := len(b)
	comma := func() {
		if len(b) > open {
			b = append(b, ',')
		}
	}
	switch {
	case d.content != "":
		b = jsontext.Append(b, `"content":$`, d.content)
	case len(d.calls) > 0:
		b = append(b, `"content":null`...)
	}
	if d.reasoning != "" {
		comma()
		b = jsontext.Append(b, `"reasoning":$`, d.reasoning)
	}
	if len(d.calls) == 0 {
		return b
	}
	comma()
	b = jsontext.AppendList(append(b, `"tool_calls":[`...), d.calls, func(b []byte, _ int, c callDelta) []byte {
		if c.name != "" {
			return jsontext.Append(b, `{"id":$,"type":"function","index":$,"function":{"name":$}}`, c.id, c.index, c.name)
		}
		return jsontext.Append(b, `{"index":$,"function":{"arguments":$}}`, c.index, c.args)
	})
	return append(b, ']')
}

// message is a whole answer as parsed.
type message struct {
	delta
	calls []parsedCall
}

// parse parses a whole answer. As in vLLM, calls become content if the answer ends inside a call.
func (j *Reply) parse(ln *Lane) message {
	p := j.newParser(ln)
	ln.parser, p.counts = p, j.Model.Reasoning == "qwen3" // vLLM counts with another parser, without the prompt
	p.count(ln.Tokens, string(ln.Seq.Text))
	m := message{delta: p.feed(string(ln.Seq.Text), true)}
	if j.HideReasoning {
		m.reasoning = ""
	}
	if open := strings.LastIndex(p.text, tagToolCall); open >= 0 && !strings.Contains(p.text[open:], tagEndToolCall) {
		m.content = p.text
		return m
	}
	m.calls = p.calls
	if j.OneCall && len(m.calls) > 1 {
		m.calls = m.calls[:1]
	}
	return m
}

// Parse sets the parts of a complete answer, if the request's answer is parsed.
func (j *Reply) Parse(ln *Lane, a *model.Answer) {
	if j.API != request.Chat || !j.Model.parses() || ln.calling {
		return
	}
	m := j.parse(ln)
	a.Text, a.Reasoning = m.content, m.reasoning
	for _, c := range m.calls {
		a.Calls = append(a.Calls, model.Call{Name: c.name, Arguments: c.args})
	}
	ln.called = len(m.calls) > 0
}
