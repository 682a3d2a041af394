package response

import (
	"bytes"

	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/jsonscan"
)

// Tokens is the usage in a response, or in the data of an event. A number is 0, and Finish
// "", if it is not reported.
type Tokens struct {
	Input  int // of the prompt
	Cached int // of them, in the cache of the instance that computed the prompt
	Output int
	Finish string // finish reason of the first choice, as the API names it
}

// MayReport is a fast check whether one or more events may report tokens or a finish
// reason; it runs for every event of a stream. Engines write null until they have a reason.
// MayReport searches for underscores, which are rarer in an event than quotes.
func MayReport(b []byte) bool {
	const tokens, reason = `tokens":`, `reason":`
	for {
		i := bytes.IndexByte(b, '_')
		if i < 0 || len(b)-i <= len(reason) {
			return false
		}
		b = b[i+1:]
		switch string(b[:len(reason)]) {
		case tokens:
			return true
		case reason:
			if value := bytes.TrimLeft(b[len(reason):], " "); len(value) > 0 && value[0] == '"' {
				return true
			}
		}
	}
}

// TokensOf returns the usage in a response or one event.
func TokensOf(k openai.Kind, b []byte) (t Tokens) {
	open := bytes.IndexByte(b, '{') // after "data: " in an event
	if open < 0 {
		return t
	}
	t.Finish = finish(k, b, open)
	usage, ok := usageIn(k, b, open)
	if !ok {
		return t
	}
	t.Input = promptTokens(k, b, usage)
	output := "completion_tokens"
	if k == openai.Responses || k == openai.Messages {
		output = "output_tokens"
	}
	if n, ok := count(b, usage, output); ok {
		t.Output = bounded(n)
	}
	names := namesOf(k)
	m, _ := names.find(b, usage, names.tokens)
	if n, ok := number(b[m.Value:m.End]); ok {
		t.Cached = bounded(n)
	}
	return t
}

// bounded returns a number of tokens, limited to more than any engine's context length.
func bounded(n int64) int { return int(min(n, 1<<31-1)) }

// finish returns the finish reason. For /v1/responses it is the status, or the reason why
// the response is incomplete.
func finish(k openai.Kind, b []byte, open int) string {
	switch k {
	case openai.Responses:
		if m, ok := jsonscan.Find(b, open, "response"); ok && b[m.Value] == '{' {
			open = m.Value
		}
		if m, ok := jsonscan.Find(b, open, "incomplete_details"); ok && b[m.Value] == '{' {
			return string(jsonscan.FindText(b, m.Value, "reason"))
		}
		switch status := string(jsonscan.FindText(b, open, "status")); status {
		case "queued", "in_progress": // no end
			return ""
		default:
			return status
		}
	case openai.Messages:
		if m, ok := jsonscan.Find(b, open, "delta"); ok && b[m.Value] == '{' {
			open = m.Value
		}
		return string(jsonscan.FindText(b, open, "stop_reason"))
	case openai.Completion, openai.Chat, openai.Generate, openai.Other:
	}
	reason := ""
	jsonscan.EachObject(jsonscan.Value(b, open, "choices"), func(choice []byte) {
		if reason == "" {
			reason = string(jsonscan.FindText(choice, 0, "finish_reason"))
		}
	})
	return reason
}
