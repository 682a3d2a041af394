package relay

import (
	"cmp"

	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/response"
	"github.com/pdmesh/pdmesh/internal/openai/sse"
)

// reportsTokens reports whether the answer's tokens are known to be generated ones.
func (a *Answer) reportsTokens() bool { return a.Kind != openai.Other || a.Generates }

// noteEvents records the token counts and the finish reason that events on their way to the
// client report. Nearly all of them report nothing; for these it is one search.
func (a *Answer) noteEvents(batch []byte) {
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

// noteWhole does the same for a whole answer, or for the data of an event. What a later event
// reports replaces what an earlier one has.
func (a *Answer) noteWhole(answer []byte) {
	if !a.reportsTokens() {
		return
	}
	t := response.TokensOf(a.Kind, answer)
	if t.Input > 0 {
		a.Tokens.Input, a.Tokens.Cached = t.Input, t.Cached
	}
	if t.Output > 0 {
		a.Tokens.Output = t.Output
	}
	if t.Finish != "" {
		a.Tokens.Finish = t.Finish
	}
}

// Prompted adds what the prefill instance has reported; 0 if it has reported nothing. A decode
// instance counts the whole prompt as cached.
func (a *Answer) Prompted(input, cached int) {
	if input == 0 {
		return
	}
	a.Tokens.Cached = cached
	a.Tokens.Input = cmp.Or(a.Tokens.Input, input)
}
