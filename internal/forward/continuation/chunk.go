package continuation

import (
	"bytes"
	"encoding/json"
	"strconv"
	"unicode/utf8"

	"github.com/pdmesh/pdmesh/internal/openai/jsonscan"
)

// span is the position of a value in an event; the zero value means that the event does not have it.
type span struct{ start, end int }

func (s span) of(event []byte) []byte { return event[s.start:s.end] }

// chunk has the values of one event of a completion or a chat that matter here. Values that
// are null or empty count as absent.
type chunk struct {
	event    []byte
	open     int // position of the choice's brace; 0 if there is no choice
	ids      span
	prompt   span
	text     span // text of a completion, content of a chat
	thoughts span // reasoning of a chat
	twin     span // the same reasoning under its other name
	calls    span
	delta    span
	finish   span
	logprobs span
	role     bool
	textAt   int // position after the opening quote of the text, even of an empty one; 0 if there is none
}

// hasContent reports whether the event's choice has text, a tool call or a finish reason.
func (c *chunk) hasContent() bool { return c.text.end|c.thoughts.end|c.calls.end|c.finish.end != 0 }

// entries returns the lists in the event's logprobs, and the number of their tokens.
func (c *chunk) entries() (lists map[string][]json.RawMessage, tokens int) {
	if c.logprobs.end == 0 || json.Unmarshal(c.logprobs.of(c.event), &lists) != nil {
		return nil, 0
	}
	return lists, max(len(lists["content"]), len(lists["tokens"])) // of a chat, or of a completion
}

// endOffset returns the text_offset of the token after a completion's logprobs, 0 for those of a chat. vLLM
// adds the length of each token as reported (_create_completion_logprobs in its completion/serving.py).
func endOffset(lists map[string][]json.RawMessage) int {
	offsets, tokens := lists["text_offset"], lists["tokens"]
	n := len(offsets)
	if n == 0 || n != len(tokens) {
		return 0
	}
	last, _ := strconv.Atoi(string(offsets[n-1]))
	return last + utf8.RuneCount(jsonscan.Unquote(tokens[n-1]))
}

const firstChoice = `"choices":[{`

// readChunk reads an event. wantPrompt reports whether the tokens of the prompt are
// expected: only the first event of a leg has them.
func readChunk(event []byte, wantPrompt bool) chunk {
	c := chunk{event: event}
	// A quote inside a string has a backslash before it, so this cannot be inside a text.
	if i := bytes.Index(event, []byte(firstChoice)); i >= 0 {
		c.open = i + len(firstChoice) - 1
	} else if m, ok := jsonscan.Find(event, max(0, bytes.IndexByte(event, '{')), "choices"); ok {
		s := jsonscan.Scanner{Text: event}
		if i := s.Space(m.Value + 1); event[m.Value] == '[' && event[i] == '{' {
			c.open = i
		}
	}
	if c.open > 0 && jsonscan.EachMember(event, c.open, c.member) != nil {
		return chunk{event: event}
	}
	if wantPrompt && c.prompt.end == 0 {
		if m, ok := jsonscan.Find(event, max(0, bytes.IndexByte(event, '{')), "prompt_token_ids"); ok {
			c.prompt = c.value(m)
		}
	}
	return c
}

// value returns the span of a member's value, the zero span if it is null or empty.
func (c *chunk) value(m jsonscan.Member) span {
	if m.End-m.Value <= 2 || jsonscan.IsNull(c.event[m.Value:m.End]) {
		return span{}
	}
	return span{m.Value, m.End}
}

// inside returns the position after the opening quote of a string, 0 for any other value.
func (c *chunk) inside(m jsonscan.Member) int {
	if c.event[m.Value] != '"' {
		return 0
	}
	return m.Value + 1
}

// member records a member of the choice.
func (c *chunk) member(name []byte, m jsonscan.Member) {
	switch string(name) {
	case "text":
		c.text, c.textAt = c.value(m), c.inside(m)
	case "delta":
		if c.event[m.Value] == '{' {
			c.delta = span{m.Value, m.End}
			_ = jsonscan.EachMember(c.event, m.Value, c.deltaMember) // was scanned before
		}
	case "finish_reason":
		c.finish = c.value(m)
	case "token_ids":
		c.ids = c.value(m)
	case "prompt_token_ids":
		c.prompt = c.value(m)
	case "logprobs":
		c.logprobs = c.value(m)
	}
}

func (c *chunk) deltaMember(name []byte, m jsonscan.Member) {
	switch string(name) {
	case "role":
		c.role = true
	case "content":
		c.text, c.textAt = c.value(m), c.inside(m)
	case "reasoning", "reasoning_content": // the latter before vLLM 0.12, and both for some releases after that
		if v := c.value(m); v.end > 0 {
			c.thoughts, c.twin = v, c.thoughts
		}
	case "tool_calls":
		c.calls = c.value(m)
	}
}
