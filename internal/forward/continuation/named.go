package continuation

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"

	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/jsonscan"
	"github.com/pdmesh/pdmesh/internal/openai/sse"
)

// Engines report no token ids in the events of /v1/responses and /v1/messages, so their
// streams can only be replayed. The part that the client has is recorded as one text: the
// types and names in its events, and the text of its deltas. Consecutive deltas count as
// one, since engines group tokens differently from run to run.

// named reports whether the answer is of one of these APIs.
func (a *Answer) named() bool {
	return a.req.Kind == openai.Responses || a.req.Kind == openai.Messages
}

// namedEvent has the values of an event of these APIs that matter here.
type namedEvent struct {
	mark     []byte   // its types and names
	text     span     // of a delta
	logprobs span     // of a delta's tokens, a list
	sequence span     // sequence_number
	names    [][]byte // the JSON of values that differ from run to run: ids, and the time of creation
}

// readNamed reads an event whose data begins at open.
func readNamed(event []byte, open int) (e namedEvent, err error) {
	err = jsonscan.EachMember(event, open, func(name []byte, m jsonscan.Member) {
		switch string(name) {
		case "delta":
			if e.text = (span{m.Value, m.End}); event[m.Value] != '"' {
				e.text = deltaText(event, m.Value)
			}
		case "logprobs":
			e.logprobs = span{m.Value, m.End}
		case "sequence_number":
			e.sequence = span{m.Value, m.End}
		}
	})
	e.walk(event[open:], maxLevels)
	e.mark = append(e.mark, 1) // no mark is a prefix of another one
	return e, err
}

// deltaText returns the text in a delta of /v1/messages. Signatures do not count: they differ between runs.
func deltaText(event []byte, open int) span {
	for _, name := range [...]string{"text", "thinking", "partial_json"} {
		if m, ok := jsonscan.Find(event, open, name); ok && event[m.Value] == '"' {
			return span{m.Value, m.End}
		}
	}
	return span{}
}

// maxLevels bounds the nested objects that are read. Types and ids of an answer are less deep; a deeper object
// is a tool of the client, which may have hundreds of levels. Each level is scanned again.
const maxLevels = 8

// walk records the types, names and ids in an object and in the objects inside it, down to a number of levels.
func (e *namedEvent) walk(object []byte, levels int) {
	if levels == 0 {
		return
	}
	_ = jsonscan.EachMember(object, 0, func(name []byte, m jsonscan.Member) { // after an error, the members before it count
		value := object[m.Value:m.End]
		switch key := string(name); {
		case value[0] == '{':
			e.walk(value, levels-1)
		case value[0] == '[':
			jsonscan.EachObject(value, func(item []byte) { e.walk(item, levels-1) })
		case key == "type", key == "name":
			e.mark = append(append(e.mark, 0), value...)
		case key == "id", key == "item_id", key == "call_id":
			e.names = append(e.names, value)
		case key == "created_at":
			e.names = append(e.names, object[m.Key:m.End])
		}
	})
}

// namedEvent records one event of these APIs, and edits it.
func (a *Answer) namedEvent(event []byte, out *edited) error {
	open := bytes.IndexByte(event, '{')
	if open < 0 || sse.KeepsAlive(a.req.Kind, event) {
		out.keep()
		return nil
	}
	e, err := readNamed(event, open)
	if err != nil {
		return err
	}
	tape, has := &a.delivered.texts[content], &a.leg.has.texts[content]
	before := *tape
	var added []byte
	if e.text.end == 0 || !bytes.Equal(e.mark, a.marked) {
		tape.add(e.mark)
		added, a.marked = e.mark, slices.Clone(e.mark)
	}
	if e.text.end > 0 {
		text := jsonscan.Unquote(e.text.of(event))
		a.record(content, text)
		added = append(added, text...)
	}
	rest, err := has.without(before, added)
	if err != nil {
		return err
	}
	for _, name := range e.names {
		if !slices.ContainsFunc(a.leg.names, func(n []byte) bool { return bytes.Equal(n, name) }) {
			if a.leg.names = append(a.leg.names, bytes.Clone(name)); len(a.leg.names) > len(a.names) {
				a.names = append(a.names, a.leg.names[len(a.names)])
			}
		}
	}
	switch {
	case !a.leg.replays:
	case before.n < has.n && len(rest) == 0:
		return nil
	case before.n < has.n:
		out.replace(e.text, quoted(rest))
		out.replace(e.logprobs, lastLogprobs(e.logprobs.of(event), len(rest)))
	}
	if a.leg.replays {
		out.replace(e.sequence, strconv.Itoa(a.sequence))
	}
	if a.sequence++; !a.leg.replays && a.events > maxReplay {
		a.giveUp(ReasonAPI)
	}
	out.keep()
	return nil
}

// lastLogprobs returns the logprobs of the tokens in the last bytes of a delta. It compares lengths,
// not numbers of tokens: engines omit tokens without text unless they are in one event with others.
func lastLogprobs(list []byte, bytes int) string {
	var entries []json.RawMessage
	_ = json.Unmarshal(list, &entries) // a value of another kind has none
	first := len(entries)
	for ; first > 0 && bytes > 0; first-- {
		bytes -= len(jsonscan.FindText(entries[first-1], 0, "token"))
	}
	b, _ := json.Marshal(entries[first:]) // was parsed before
	return string(b)
}

// rename replaces the ids in events of a replaying leg by those of the client's answer.
func (a *Answer) rename(events []byte) []byte {
	for i, name := range a.leg.names {
		if len(name) >= distinct/2 && !bytes.Equal(name, a.names[i]) { // a shorter one may also occur in a text
			events = bytes.ReplaceAll(events, name, a.names[i])
		}
	}
	return events
}
