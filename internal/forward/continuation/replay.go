package continuation

import (
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/pdmesh/pdmesh/internal/openai/jsonscan"
)

// maxReplay and replayTime bound an answer that is replayed, in tokens and in the time
// since its first text. It is computed again before the client gets more of it.
const (
	maxReplay  = 512
	replayTime = 10 * time.Second
)

// errDiffers is the error of a leg whose replay differs from the original answer.
var errDiffers = errors.New("the engine wrote another answer when the request was repeated")

// replayable reports whether the answer can be continued by a repetition of its request.
func (a *Answer) replayable(f *parameters) bool {
	return f.greedy && a.events <= maxReplay && len(a.ids.list) <= maxReplay && !a.wantsIDs && (a.since.IsZero() || time.Since(a.since) <= replayTime)
}

// replay prepares a leg that repeats the request. Pass omits the part that the client has.
func (a *Answer) replay() *Next {
	has := a.delivered
	if a.leg.replays && !a.replayed(&a.delivered) {
		has = a.leg.has // the last replay did not reach the end of it
	}
	a.moves--
	a.promptTokens = len(a.prompt.list)
	a.leg = legState{continues: true, replays: true, verified: true, sentText: true, has: has, finished: a.finished}
	a.ids.list = a.ids.list[:0]
	a.delivered, a.run, a.channel, a.switches, a.mark, a.logged, a.events, a.marked = delivered{}, text{}, content, 0, 0, 0, 0, nil
	a.since = time.Time{}
	return &Next{How: HowReplay, Request: a.req}
}

// replayed reports whether a replay has reached the end of the part that the client had before it.
func (a *Answer) replayed(s *delivered) bool {
	has := &a.leg.has
	if len(s.calls) < len(has.calls) || s.logprobs < has.logprobs {
		return false
	}
	for i := range has.texts {
		if s.texts[i].n < has.texts[i].n {
			return false
		}
	}
	for i := range has.calls {
		if s.calls[i].n < has.calls[i].n {
			return false
		}
	}
	return true
}

// dropReplayed removes from an event the part that the client has. before is the text of the
// replay before the event. all reports whether nothing of the event is left.
func (a *Answer) dropReplayed(c *chunk, before *delivered, out *edited) (all bool, err error) {
	left := c.finish.end > 0 && !a.leg.finished
	for ch, at := range [...]span{content: c.text, reasoning: c.thoughts} {
		if at.end == 0 {
			continue
		}
		rest, err := a.leg.has.texts[ch].without(before.texts[ch], jsonscan.Unquote(at.of(c.event)))
		if err != nil {
			return false, err
		}
		out.replace(at, quoted(rest))
		if at == c.thoughts {
			out.replace(c.twin, quoted(rest))
		}
		left = left || len(rest) > 0
	}
	if c.calls.end > 0 {
		calls, err := a.dropReplayedCalls(c.calls.of(c.event), before)
		if err != nil {
			return false, err
		}
		out.replace(c.calls, calls)
		left = left || calls != "[]"
	}
	if lists, n := c.entries(); n > 0 {
		skip := max(0, min(n, a.leg.has.logprobs-before.logprobs))
		out.replace(c.logprobs, withoutFirst(lists, skip))
		left = left || skip < n
	}
	if c.finish.end > 0 && !a.replayed(&a.delivered) || left && a.leg.finished {
		return false, errDiffers
	}
	return !left && c.open > 0, nil
}

// dropReplayedCalls returns the rest of the tool calls of an event.
func (a *Answer) dropReplayedCalls(calls []byte, before *delivered) (left string, err error) {
	list := []byte{'['}
	jsonscan.EachObject(calls, func(call []byte) {
		i := callIndex(call)
		if i < 0 || i >= len(a.leg.has.calls) {
			list = append(append(list, call...), ',') // a new one
			return
		}
		earlier := text{}
		if i < len(before.calls) {
			earlier = before.calls[i]
		}
		rest, differs := a.leg.has.calls[i].without(earlier, arguments(call))
		switch {
		case differs != nil:
			err = differs
		case len(rest) > 0:
			list = append(list, `{"index":`+strconv.Itoa(i)+`,"function":{"arguments":`+quoted(rest)+`}},`...)
		}
	})
	return strings.TrimSuffix(string(list), ",") + "]", err
}

// withoutFirst returns logprobs without those of the first n tokens.
func withoutFirst(lists map[string][]json.RawMessage, n int) string {
	for name, list := range lists {
		lists[name] = list[min(n, len(list)):]
	}
	b, _ := json.Marshal(lists) // was parsed before
	return string(b)
}

// without returns part without the bytes that belong to t; earlier is the text before part.
// It returns an error if earlier and part do not begin with t.
func (t *text) without(earlier text, part []byte) ([]byte, error) {
	if earlier.n >= t.n {
		return part, nil
	}
	n := min(len(part), t.n-earlier.n)
	earlier.add(part[:n])
	if earlier.n == t.n && earlier.hash != t.hash {
		return nil, errDiffers
	}
	return part[n:], nil
}

func quoted(s []byte) string {
	b, _ := json.Marshal(string(s)) // a string has no error
	return string(b)
}
