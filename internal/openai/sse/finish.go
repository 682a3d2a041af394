package sse

import (
	"bytes"

	"github.com/pdmesh/pdmesh/internal/openai/jsonscan"
)

// Aborted tells whether an answer, or an event, of /v1/completions or /v1/chat/completions
// ends without a token: its choices have the finish reason "abort" and no content. vLLM
// answers so, with status 200, to a request that arrives while it drains before it exits.
func Aborted(b []byte) bool {
	if !bytes.Contains(b, []byte(`"abort"`)) {
		return false
	}
	ended, said := 0, false
	eachChoice(b, func(choice []byte) {
		if m, ok := jsonscan.Find(choice, 0, "finish_reason"); ok && string(choice[m.Value:m.End]) == `"abort"` {
			ended++
		} else {
			said = true
		}
		said = said || choiceSays(choice)
	})
	return ended > 0 && !said
}

// StopsBy tells whether a choice of an answer, or of an event, has the given stop reason.
func StopsBy(b []byte, reason string) bool {
	quoted := `"` + reason + `"`
	if !bytes.Contains(b, []byte(quoted)) {
		return false
	}
	found := false
	eachChoice(b, func(choice []byte) {
		m, ok := jsonscan.Find(choice, 0, "stop_reason")
		found = found || ok && string(choice[m.Value:m.End]) == quoted
	})
	return found
}

// eachChoice calls f for each of the choices, which begin at their brace.
func eachChoice(b []byte, f func(choice []byte)) {
	open := bytes.IndexByte(b, '{') // behind "data: " in an event
	if open < 0 {
		return
	}
	if m, ok := jsonscan.Find(b, open, "choices"); ok {
		jsonscan.EachObject(b[m.Value:m.End], f)
	}
}

// choiceSays tells whether a choice has text, content or a call.
func choiceSays(choice []byte) bool {
	if m, ok := jsonscan.Find(choice, 0, "text"); ok && says(choice[m.Value:m.End]) {
		return true
	}
	for _, name := range [...]string{"delta", "message"} {
		if m, ok := jsonscan.Find(choice, 0, name); ok && deltaSays(choice[m.Value:m.End]) {
			return true
		}
	}
	return false
}
