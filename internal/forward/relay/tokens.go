package relay

import (
	"bytes"
	"cmp"
	"strconv"

	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/jsonscan"
	"github.com/pdmesh/pdmesh/internal/openai/response"
	"github.com/pdmesh/pdmesh/internal/openai/sse"
)

// reportsTokens reports whether the answer's tokens are known to be generated ones.
func (a *Answer) reportsTokens() bool { return a.Kind != openai.Other || a.Generates }

// noteEvents records the token counts and the finish reason in events for the client.
// Nearly all events have none of them; for those it is one search.
func (a *Answer) noteEvents(batch []byte) {
	a.noteSequence(batch)
	if !a.reportsTokens() || !response.MayReport(batch) {
		return
	}
	for {
		event, rest, ok := sse.NextEvent(batch)
		if !ok {
			return
		}
		if response.MayReport(event) {
			a.noteWhole(sse.EventData(event))
		}
		batch = rest
	}
}

// noteSequence records the number of the last event of /v1/responses, for an error event after it.
func (a *Answer) noteSequence(batch []byte) {
	const name = `"sequence_number":` // no text can contain it, because quotes are escaped there
	if a.Kind != openai.Responses {
		return
	}
	if at := bytes.LastIndex(batch, []byte(name)); at >= 0 {
		at += len(name)
		if n, err := strconv.Atoi(string(batch[at:jsonscan.Digits(batch, at)])); err == nil {
			a.sequence = n + 1
		}
	}
}

// noteWhole does the same for a whole answer, or for the data of an event. Later reports
// replace earlier ones.
func (a *Answer) noteWhole(answer []byte) {
	if !a.reportsTokens() {
		return
	}
	t := response.TokensOf(a.Kind, answer)
	if t.Input > 0 {
		a.Tokens.Input, a.Tokens.Cached = t.Input, min(t.Cached, t.Input)
	}
	if t.Output > 0 {
		a.Tokens.Output = t.Output
	}
	if t.Finish != "" {
		a.Tokens.Finish = t.Finish
	}
}

// Prompted adds prefill's counts of prompt tokens, 0 if it reported none. A decode instance
// counts the whole prompt as cached.
func (a *Answer) Prompted(input, cached int) {
	if input == 0 {
		return
	}
	a.Tokens.Input = cmp.Or(a.Tokens.Input, input)
	a.Tokens.Cached = min(cached, a.Tokens.Input)
}
