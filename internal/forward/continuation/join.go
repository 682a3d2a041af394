package continuation

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/jsonscan"
)

// legState is the state of a leg that continues the answer. The zero value is for the first leg.
type legState struct {
	continues bool
	verified  bool      // its engine has received the expected prompt
	sentText  bool      // the leg has sent text
	rest      string    // text that the lost leg held back; precedes the text of this one
	restOf    channel   // channel of rest, once rest was sent
	history   string    // text of the tokens of the answer before this leg
	opening   string    // first text of the prompt
	ids       int       // tokens of the answer before this leg
	calls     int       // tool calls before it
	offset    int       // text_offset of its first token
	replays   bool      // it repeats the answer from its start
	has       delivered // the client's part of the answer before a leg that replays
	finished  bool      // the client had the finish reason before it
	names     [][]byte  // ids in its events, at the index of the corresponding one in Answer.names
}

// Replays reports whether the leg repeats the answer from its start.
func (a *Answer) Replays() bool { return a != nil && a.leg.replays }

// The errors of a leg that does not continue the answer, although its engine has accepted the request.
var (
	errPrompt = errors.New("the engine did not continue from the token ids that it was sent")
	errLeak   = errors.New("the engine repeated the prompt instead of continuing it")
)

// verify checks that an event belongs to a leg that continues the answer. Its engine must
// use the token ids of the request, and must not send the text of the prompt.
func (a *Answer) verify(c *chunk) error {
	if !a.leg.verified {
		switch {
		case c.prompt.end > 0:
			var got idList
			if !got.addJSON(c.prompt.of(c.event)) || !slices.Equal(got.list, slices.Concat(a.prompt.list, a.ids.list)) {
				return errPrompt
			}
			a.leg.verified = true
		case c.open > 0 && (c.hasContent() || c.ids.end > 0):
			return errPrompt
		}
	}
	if first := c.text; !a.leg.sentText && (first.end > 0 || c.thoughts.end > 0) {
		if first.end == 0 {
			first = c.thoughts
		}
		a.leg.sentText = true
		if a.leaked(string(jsonscan.Unquote(first.of(c.event)))) {
			return errLeak
		}
	}
	return nil
}

const (
	// openingIDs is the number of tokens whose text is the opening of the prompt.
	openingIDs = 8
	// distinct is the length in bytes from which a text is unlikely to occur in another one by chance.
	distinct = 16
)

// leaked reports whether the first text of a leg repeats the prompt. vLLM's detokenizer sends prompt
// and history if their ids end in half a character (DecodeStream in vLLM's
// v1/engine/detokenizer.py). This is a second check: seam cuts the history so that it cannot happen.
func (a *Answer) leaked(first string) bool {
	opens := strings.HasPrefix(first, a.leg.opening)
	repeats := strings.Contains(first, a.leg.history)
	return opens && len(a.leg.opening) >= distinct || repeats && len(a.leg.history) >= distinct ||
		opens && repeats && len(a.leg.opening) > 0 && len(a.leg.opening)+len(a.leg.history) >= distinct/2
}

// takeRest returns the text that the lost leg held back, once, at the first event that can carry it.
func (a *Answer) takeRest(c *chunk) string {
	rest := a.leg.rest
	if rest == "" || c.open == 0 || !c.hasContent() {
		return ""
	}
	if a.channel == reasoning && c.thoughts.end == 0 && strings.TrimSpace(rest) == "" {
		a.leg.rest = "" // the lost leg would have dropped it, too
		return ""
	}
	a.record(a.channel, []byte(rest))
	a.leg.rest, a.leg.restOf = "", a.channel
	return rest
}

// join edits an event of a leg that continues the answer, so that the client sees one
// answer. rest is inserted before the event's text.
func (a *Answer) join(c *chunk, rest string, out *edited) {
	if c.role && !c.hasContent() {
		return // the client has the role
	}
	open := bytes.IndexByte(c.event, '{')
	if open < 0 {
		out.keep()
		return
	}
	for _, f := range [...]struct {
		name  string
		value []byte
	}{{"id", a.id}, {"created", a.created}, {"model", a.model}} {
		if m, ok := jsonscan.Find(c.event, open, f.name); ok && f.value != nil {
			out.replace(span{m.Value, m.End}, string(f.value))
		}
	}
	if rest != "" {
		a.insertRest(c, rest, out)
	}
	if a.req.Kind == openai.Chat && len(a.delivered.calls) > 0 && !a.leg.replays && string(c.finish.of(c.event)) == `"stop"` {
		out.replace(c.finish, `"tool_calls"`)
	}
	if a.leg.calls > 0 && c.calls.end > 0 {
		a.shiftCalls(c, out)
	}
	if a.leg.offset > 0 && c.logprobs.end > 0 {
		a.shiftOffsets(c, out)
	}
	a.addUsage(c.event, open, out)
	out.keep()
}

func (a *Answer) insertRest(c *chunk, rest string, out *edited) {
	whole := quoted([]byte(rest))
	inner := whole[1 : len(whole)-1]
	switch {
	case a.req.Kind == openai.Completion, a.leg.restOf == content && c.textAt > 0:
		out.insert(c.textAt, inner)
	case c.thoughts.end > 0 && a.leg.restOf == reasoning:
		out.insert(c.thoughts.start+1, inner)
	default:
		member := `"` + a.leg.restOf.name() + `":` + whole
		if c.delta.end-c.delta.start > len("{}") {
			member += ","
		}
		out.insert(c.delta.start+1, member)
	}
}

// shiftCalls adds the number of calls of earlier legs to the indexes of tool calls.
func (a *Answer) shiftCalls(c *chunk, out *edited) {
	at := c.calls.start
	jsonscan.EachObject(c.calls.of(c.event), func(call []byte) {
		at += bytes.Index(c.event[at:], call)
		if m, ok := jsonscan.Find(call, 0, "index"); ok {
			out.replace(span{at + m.Value, at + m.End}, strconv.Itoa(a.leg.calls+callIndex(call)))
		}
		at += len(call)
	})
}

// shiftOffsets adds the length of the tokens of earlier legs to the offsets of logprobs.
func (a *Answer) shiftOffsets(c *chunk, out *edited) {
	var offsets []int
	m, ok := jsonscan.Find(c.event, c.logprobs.start, "text_offset")
	if !ok || json.Unmarshal(c.event[m.Value:m.End], &offsets) != nil {
		return
	}
	for i := range offsets {
		offsets[i] += a.leg.offset
	}
	b, _ := json.Marshal(offsets) // integers have no error
	out.replace(span{m.Value, m.End}, string(b))
}

// addUsage adds the tokens of earlier legs to the usage of an event. Answer tokens in the
// engine's cache do not count as cached. The number of reasoning tokens is removed: earlier
// legs may not have reported it, and parsers do not count the prompt.
func (a *Answer) addUsage(event []byte, open int, out *edited) {
	if a.leg.ids == 0 || !bytes.Contains(event, []byte(`"completion_tokens":`)) {
		return
	}
	usage, _ := jsonscan.Find(event, open, "usage")
	completion, err := strconv.Atoi(string(jsonscan.Value(event, open, "usage", "completion_tokens")))
	if err != nil {
		return
	}
	completion += a.leg.ids
	for _, f := range [...]struct {
		name  string
		value int
	}{{"prompt_tokens", a.promptTokens}, {"completion_tokens", completion}, {"total_tokens", a.promptTokens + completion}} {
		if m, ok := jsonscan.Find(event, usage.Value, f.name); ok {
			out.replace(span{m.Value, m.End}, strconv.Itoa(f.value))
		}
	}
	if m, ok := jsonscan.Find(event, usage.Value, "completion_tokens_details"); ok {
		out.replace(span{m.Value, m.End}, "null")
	}
	m, _ := jsonscan.Find(event, usage.Value, "prompt_tokens_details", "cached_tokens")
	if cached, err := strconv.Atoi(string(event[m.Value:m.End])); err == nil && cached > a.promptTokens {
		out.replace(span{m.Value, m.End}, strconv.Itoa(a.promptTokens))
	}
}
