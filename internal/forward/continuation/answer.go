package continuation

import (
	"bytes"
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/pdmesh/pdmesh/internal/forward/scratch"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/jsonscan"
	"github.com/pdmesh/pdmesh/internal/openai/request"
	"github.com/pdmesh/pdmesh/internal/openai/sse"
)

// Answer is the part of one streamed answer that the client has. New creates it. It belongs
// to one goroutine. A nil Answer records nothing and cannot be continued.
type Answer struct {
	Cached int // prompt tokens that prefill had in its cache, for a usage written by the proxy; 0 if not known

	req         *request.Request // the client's request
	moves       int              // the number of continuations that are left
	why         string           // why it cannot be continued, one of Reasons; "" if it can
	wantsIDs    bool             // the client wants the token ids itself
	old         bool             // see NoteEngine
	prompt      idList           // tokens of the prompt
	ids         idList           // tokens of the answer
	textlessIDs []uint32         // ids that were alone in an event without text; at most maxTextless, and each once
	separatorID uint32           // an id that was alone in an event with text, see special
	separator   string           // that text; "" if there is no such id yet
	events      int              // number of events with text or a tool call
	since       time.Time        // time of the first of them, or of the first since a replay began; zero: none yet

	// The part that the client has:
	id, created, model []byte // JSON values of its events
	delivered          delivered
	channel            channel
	run                text // text since the channel changed, if it has
	switches           int  // changes of the channel
	mark               int  // number of ids up to the last event with text
	logged             int  // number of ids up to the last event with logprobs
	offset             int  // text_offset of the next token with logprobs
	finished           bool // it has the finish reason
	usage              bool // it has the usage
	promptTokens       int  // for the usage of later legs

	// For /v1/responses and /v1/messages, see named.go.
	names    [][]byte // ids that the client has
	marked   []byte   // the mark of the last event
	sequence int      // sequence_number of the client's next event

	leg legState
	out edited // state of Pass
}

// New returns an Answer for a streamed request that may be continued moves times, nil if
// moves is 0 or the request is not streamed. memory bounds the token ids of all answers.
func New(req *request.Request, moves int, memory *scratch.Bodies) *Answer {
	if moves <= 0 || !req.Stream {
		return nil
	}
	a := &Answer{req: req, moves: moves, prompt: idList{memory: memory}, ids: idList{memory: memory}}
	switch ids := req.Kind == openai.Completion || req.Kind == openai.Chat; {
	case !ids && (!a.named() || req.Bypass != "" || !a.parameters().greedy):
		a.why = ReasonAPI
	case req.Bypass != "":
		a.why = ReasonChoices
	}
	if raw := req.Raw(request.FieldReturnTokenIDs); raw != nil {
		a.wantsIDs, _ = jsonscan.LaxBool(raw)
	}
	return a
}

// Records reports whether the body of the request is still needed. Without token ids, the
// answer can still be replayed.
func (a *Answer) Records() bool { return a != nil && (a.why == "" || a.why == ReasonNoIDs) }

// WantsIDs reports whether the legs must report token ids.
func (a *Answer) WantsIDs() bool { return a != nil && a.why == "" && !a.named() }

// NoteEngine records whether the engine of the leg, and another one that could continue it,
// can compute a chat's prompt from token ids.
func (a *Answer) NoteEngine(takesPromptIDs bool) {
	if a != nil {
		a.old = !takesPromptIDs
	}
}

// Continued reports whether the answer was continued at least once.
func (a *Answer) Continued() bool { return a != nil && a.leg.continues }

// Release frees the memory of the token ids.
func (a *Answer) Release() {
	if a != nil {
		a.giveUp(ReasonEnded)
	}
}

// giveUp records why the answer can no longer be continued.
func (a *Answer) giveUp(why string) {
	a.why = cmp.Or(a.why, why)
	a.prompt.release()
	a.ids.release()
}

// Pass records whole events of a leg, and returns them edited for the client. It may change
// the bytes of batch. An error means that the leg does not continue the answer, and that
// the client must get nothing of batch.
func (a *Answer) Pass(batch []byte) ([]byte, error) {
	if a.why == ReasonAPI || a.why == ReasonChoices {
		return batch, nil
	}
	out := &a.out
	*out = edited{out: batch[:0]}
	for rest := batch; ; {
		event, tail, ok := sse.NextEvent(rest)
		if !ok {
			all := append(out.out, rest...)
			if a.leg.replays {
				all = a.rename(all)
			}
			return all, nil
		}
		record := a.event
		if a.named() {
			record = a.namedEvent
		}
		out.begin(event)
		if err := record(event, out); err != nil {
			return nil, err
		}
		rest = tail
	}
}

// event records one event, and edits it.
func (a *Answer) event(event []byte, out *edited) error {
	c := readChunk(event, len(a.prompt.list) == 0 && a.why == "" || a.leg.continues && !a.leg.verified)
	if a.created == nil {
		a.noteHead(event)
	}
	if a.leg.continues {
		if err := a.verify(&c); err != nil {
			return err
		}
	}
	rest := a.takeRest(&c)
	before := a.delivered
	if a.leg.replays {
		before.calls = slices.Clone(before.calls) // note changes them in place
	}
	a.note(&c)
	hide := !a.wantsIDs && c.ids.end > 0
	if hide && a.req.Kind == openai.Chat && !c.hasContent() && c.logprobs.end == 0 && c.delta.end-c.delta.start == len("{}") {
		return nil // without return_token_ids, the engine would not have sent it
	}
	if c.logprobs.end > 0 {
		lists, n := c.entries()
		a.delivered.logprobs += n
		a.logged = len(a.ids.list)
		if end := endOffset(lists); end > 0 {
			a.offset = a.leg.offset + end
		}
	}
	if !a.wantsIDs || a.leg.continues {
		out.replace(c.prompt, "null")
	}
	if !a.wantsIDs {
		out.replace(c.ids, "null")
	}
	switch {
	case !a.leg.continues:
		out.keep()
	case a.leg.replays && (a.leg.finished || !a.replayed(&before)):
		swallowed, err := a.dropReplayed(&c, &before, out)
		if err != nil || swallowed {
			return err
		}
		fallthrough
	default:
		a.join(&c, rest, out)
	}
	return nil
}

// noteHead records the values that all events of an answer have in common.
func (a *Answer) noteHead(event []byte) {
	open := bytes.IndexByte(event, '{')
	if open < 0 || sse.IsDone(event) {
		return
	}
	value := func(name string) []byte { return bytes.Clone(jsonscan.Value(event, open, name)) }
	a.id, a.created, a.model = value("id"), value("created"), value("model")
}

// note adds an event to the record of the answer.
func (a *Answer) note(c *chunk) {
	switch {
	case c.prompt.end > 0 && len(a.prompt.list) == 0:
		if a.why == "" && !a.prompt.addJSON(c.prompt.of(c.event)) {
			a.giveUp(ReasonMemory)
		}
	case c.open == 0:
		a.usage = a.usage || a.finished && bytes.Contains(c.event, []byte(`"usage":{`))
		return
	}
	if a.why == "" {
		switch {
		case c.ids.end > 0:
			before := len(a.ids.list)
			if !a.ids.addJSON(c.ids.of(c.event)) {
				a.giveUp(ReasonMemory)
			} else if added := a.ids.list[before:]; len(added) == 1 {
				a.noteSingleID(added[0], c)
			}
		case c.text.end|c.thoughts.end|c.calls.end > 0:
			a.giveUp(ReasonNoIDs)
		}
	}
	if c.thoughts.end > 0 {
		a.record(reasoning, jsonscan.Unquote(c.thoughts.of(c.event)))
	}
	if c.text.end > 0 {
		a.record(content, jsonscan.Unquote(c.text.of(c.event)))
	}
	if c.calls.end > 0 {
		a.record(toolCalls, nil)
		jsonscan.EachObject(c.calls.of(c.event), func(call []byte) {
			a.recordCall(a.leg.calls+callIndex(call), arguments(call))
		})
	}
	a.finished = a.finished || c.finish.end > 0
}

// noteSingleID records an id that is the only one of its event.
func (a *Answer) noteSingleID(id uint32, c *chunk) {
	switch {
	case !c.hasContent():
		if len(a.textlessIDs) < maxTextless && !slices.Contains(a.textlessIDs, id) {
			a.textlessIDs = append(a.textlessIDs, id)
		}
	case a.separator == "" && c.text.end|c.thoughts.end > 0 && a.mark == len(a.ids.list)-1: // the text belongs to no earlier id
		at := c.text
		if at.end == 0 {
			at = c.thoughts
		}
		word := strings.TrimSpace(string(jsonscan.Unquote(at.of(c.event))))
		if len(word) >= minWord && !strings.ContainsFunc(word, func(r rune) bool { return !unicode.IsLetter(r) }) {
			a.separatorID, a.separator = id, word
		}
	}
}

// maxCalls bounds the tool calls of an answer.
const maxCalls = 1024

// recordCall records arguments of a tool call.
func (a *Answer) recordCall(index int, args []byte) {
	if index < 0 || index >= maxCalls {
		a.giveUp(ReasonToolCall)
		return
	}
	for len(a.delivered.calls) <= index {
		a.delivered.calls = append(a.delivered.calls, text{})
	}
	a.delivered.calls[index].add(args)
}

// arguments returns the text of the arguments of a tool call in an event.
func arguments(call []byte) []byte {
	return jsonscan.FindText(call, 0, "function", "arguments")
}

// callIndex returns the index of a tool call in an event, 0 if it has none.
func callIndex(call []byte) int {
	i, _ := strconv.Atoi(string(jsonscan.Value(call, 0, "index")))
	return i
}

// record records text of a channel.
func (a *Answer) record(in channel, added []byte) {
	if a.events++; a.since.IsZero() {
		a.since = time.Now()
	}
	if a.channel != in {
		a.channel, a.run = in, text{}
		a.switches++
	}
	if in < toolCalls {
		a.delivered.texts[in].add(added)
	}
	if a.switches > 0 {
		a.run.add(added)
	}
	a.mark = len(a.ids.list)
}

// edited builds the events for the client, in the memory of the original ones if they fit.
type edited struct {
	out   []byte
	moved bool // out has its own memory
	event []byte
	cuts  []cut
	buf   [8]cut
}

type cut struct {
	span
	by string
}

// begin starts an event. The event is omitted unless keep is called.
func (e *edited) begin(event []byte) { e.event, e.cuts = event, e.buf[:0] }

// replace replaces a value of the event, if it is present.
func (e *edited) replace(s span, by string) {
	if s.end > 0 {
		e.cuts = append(e.cuts, cut{s, by})
	}
}

// insert inserts text.
func (e *edited) insert(at int, text string) { e.cuts = append(e.cuts, cut{span{at, at}, text}) }

// keep appends the event with its changes.
func (e *edited) keep() {
	if len(e.cuts) > 1 {
		slices.SortStableFunc(e.cuts, func(a, b cut) int { return a.start - b.start })
	}
	size, grows := len(e.event), false
	for _, c := range e.cuts {
		more := len(c.by) - (c.end - c.start)
		size += more
		grows = grows || more > 0
	}
	if grows && !e.moved { // in place, it would overwrite bytes that are not copied yet
		e.out, e.moved = append(make([]byte, 0, 2*(len(e.out)+size)), e.out...), true
	}
	from := 0
	for _, c := range e.cuts {
		e.out = append(append(e.out, e.event[from:c.start]...), c.by...)
		from = c.end
	}
	e.out = append(e.out, e.event[from:]...)
}
