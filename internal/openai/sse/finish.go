package sse

import (
	"bytes"

	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/jsonscan"
)

// Aborted reports whether a response or an event of this kind shows that the engine aborted the request,
// because it shuts down or was paused. vLLM 0.32 reports that with status 200 and
//
//	completions, chat, generate  the finish reason "abort" in a choice
//	messages                     no stop reason: null in the event message_delta, absent from a whole answer
//	responses                    the status "cancelled", or an end without any output token
//
// On /v1/responses an engine without Harmony's parser reports an abort after its first token as
// "completed", which looks like a complete response.
func Aborted(k openai.Kind, b []byte) bool {
	open := bytes.IndexByte(b, '{') // after "data: " in an event
	if open < 0 {
		return false
	}
	switch k {
	case openai.Completion, openai.Chat, openai.Generate:
		return abortedChoices(b, open)
	case openai.Messages:
		return abortedMessage(b, open)
	case openai.Responses:
		return abortedResponse(b, open)
	case openai.Other:
	}
	return false
}

func abortedChoices(b []byte, open int) bool {
	if !bytes.Contains(b, []byte("abort")) { // without the quotes: they begin every member, which would make the search slow
		return false
	}
	return anyChoice(b, open, func(choice []byte) bool { return string(jsonscan.Value(choice, 0, "finish_reason")) == `"abort"` })
}

func abortedMessage(b []byte, open int) bool {
	switch string(jsonscan.Value(b, open, "type")) {
	case `"message_delta"`:
		return string(jsonscan.Value(b, open, "delta", "stop_reason")) == "null"
	case `"message"`:
		reason := jsonscan.Value(b, open, "stop_reason")
		return reason == nil || jsonscan.IsNull(reason)
	}
	return false
}

// abortedResponse handles an answer, or a closing event with the answer in it.
func abortedResponse(b []byte, open int) bool {
	if m, ok := jsonscan.Find(b, open, "response"); ok {
		open = m.Value
	}
	switch string(jsonscan.Value(b, open, "status")) {
	case `"cancelled"`:
		return true
	case `"completed"`, `"incomplete"`:
		return string(jsonscan.Value(b, open, "usage", "output_tokens")) == "0"
	}
	return false
}

// Finished reports whether a choice of an event has a finish reason.
func Finished(event []byte) bool {
	open := bytes.IndexByte(event, '{')
	if open < 0 || !bytes.Contains(event, []byte(`"finish_reason"`)) {
		return false
	}
	return anyChoice(event, open, func(choice []byte) bool {
		_, finished := readChoice(openai.Generate, choice)
		return finished
	})
}

// StopsBy reports whether a choice of an answer, or of an event, has the given stop reason.
func StopsBy(b []byte, reason string) bool {
	quoted, open := `"`+reason+`"`, bytes.IndexByte(b, '{')
	if open < 0 || !bytes.Contains(b, []byte(quoted)) {
		return false
	}
	return anyChoice(b, open, func(choice []byte) bool { return string(jsonscan.Value(choice, 0, "stop_reason")) == quoted })
}

// anyChoice reports whether f is true for a choice of the object at open. f gets the bytes from the
// opening brace of the choice.
func anyChoice(b []byte, open int, f func(choice []byte) bool) (found bool) {
	jsonscan.EachObject(jsonscan.Value(b, open, "choices"), func(choice []byte) { found = found || f(choice) })
	return found
}

// KeepsAlive reports whether an event only keeps the connection alive: a comment, or a ping of
// /v1/messages.
func KeepsAlive(k openai.Kind, event []byte) bool {
	comment := false
	for rest := event; len(rest) > 0; {
		line, tail, _ := bytes.Cut(rest, []byte{'\n'})
		rest, line = tail, bytes.TrimSuffix(line, []byte{'\r'})
		switch {
		case len(line) == 0:
		case line[0] == ':':
			comment = true
		default:
			return k == openai.Messages && string(eventName(event)) == "ping"
		}
	}
	return comment
}
