package sse

import (
	"bytes"

	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/jsonscan"
)

// EventEnd returns the end of the last complete server-sent event in b, which is
// the position after its blank line, or 0 if there is none. Lines may end in \n
// or \r\n. The first from bytes of b were already searched by an earlier call.
func EventEnd(b []byte, from int) int {
	from = max(from-3, 0)
	tail := b[from:]
	for i := len(tail); i > 0; {
		i = bytes.LastIndexByte(tail[:i], '\n')
		if i < 0 {
			return 0
		}
		if i > 0 && tail[i-1] == '\n' {
			return from + i + 1
		}
		if i > 1 && tail[i-1] == '\r' && tail[i-2] == '\n' {
			return from + i + 1
		}
	}
	return 0
}

// NextEvent splits the first event off b; ok is false if b has no complete event.
// Blank lines before an event belong to it.
func NextEvent(b []byte) (event, rest []byte, ok bool) {
	for i := 0; i < len(b); {
		n := bytes.IndexByte(b[i:], '\n')
		if n < 0 {
			return nil, b, false
		}
		i += n + 1
		switch {
		case i < len(b) && b[i] == '\n':
			return b[:i+1], b[i+1:], true
		case i+1 < len(b) && b[i] == '\r' && b[i+1] == '\n':
			return b[:i+2], b[i+2:], true
		}
	}
	return nil, b, false
}

// EventData returns the payload of an event with one data line, nil if it has
// none (a comment) or several.
func EventData(event []byte) []byte {
	var data []byte
	for len(event) > 0 {
		line, rest, _ := bytes.Cut(event, []byte{'\n'})
		event = rest
		line = bytes.TrimSuffix(line, []byte{'\r'})
		payload, ok := bytes.CutPrefix(line, []byte("data:"))
		if !ok {
			continue
		}
		if data != nil {
			return nil
		}
		data = bytes.TrimPrefix(payload, []byte{' '})
	}
	return data
}

// EventClass is the meaning of an event for its request.
type EventClass uint8

// The classes.
const (
	// EventPreamble has no content: a comment, the role chunk, empty content.
	EventPreamble EventClass = iota
	// EventContent has content, a tool call, reasoning, or a finish reason. It
	// commits the response.
	EventContent
	// EventError has an error object.
	EventError
	// EventDone is the closing [DONE].
	EventDone
)

// classifyChunk returns the class of one event of a stream whose events have no names. code
// is the status of an error, 0 if the error has none.
func classifyChunk(k openai.Kind, event []byte) (class EventClass, code int) {
	data := bytes.TrimSpace(EventData(event))
	switch {
	case len(data) == 0:
		return EventPreamble, 0
	case string(data) == "[DONE]":
		return EventDone, 0
	case data[0] != '{':
		return EventContent, 0 // unknown data is passed on
	}
	class = EventPreamble
	err := jsonscan.EachMember(data, 0, func(name []byte, m jsonscan.Member) {
		val := data[m.Value:m.End]
		switch string(name) {
		case "error":
			if !jsonscan.IsNull(val) {
				class, code = EventError, errorCode(val)
			}
		case "choices":
			if class == EventPreamble && hasContent(k, val) {
				class = EventContent
			}
		case "object":
			// vLLM before 0.10 did not nest the error.
			if string(val) == `"error"` {
				class, code = EventError, errorCode(data)
			}
		}
	})
	if err != nil && class == EventPreamble {
		return EventContent, 0
	}
	return class, code
}

// LooksLikeError is a fast check for an error event, which runs for every event after the
// commit: vLLM writes the error object first.
func LooksLikeError(event []byte) bool {
	event = trimmed(event)
	return bytes.HasPrefix(event, []byte(`data: {"error"`)) ||
		bytes.HasPrefix(event, []byte(`data: {"object":"error"`)) ||
		bytes.HasPrefix(event, []byte("event: error"))
}

// trimmed returns an event without leading blank lines. (bytes.TrimLeft would build a
// set of its two bytes twice for every event.)
func trimmed(event []byte) []byte {
	for len(event) > 0 && (event[0] == '\n' || event[0] == '\r') {
		event = event[1:]
	}
	return event
}

// IsDone reports whether an event is the closing one.
func IsDone(event []byte) bool {
	event = trimmed(event)
	return bytes.HasPrefix(event, []byte("data: [DONE]")) || bytes.HasPrefix(event, []byte("data:[DONE]"))
}

// errorCode returns the status in an error object, 0 if it has none.
func errorCode(obj []byte) int {
	m, ok := jsonscan.Find(obj, 0, "code")
	if !ok {
		return 0
	}
	code, _, _ := jsonscan.LaxInt(obj[m.Value:m.End])
	if code < 100 || code > 599 {
		return 0
	}
	return int(code)
}

// hasContent reports whether any choice has content.
func hasContent(k openai.Kind, choices []byte) bool {
	found := false
	jsonscan.EachObject(choices, func(choice []byte) {
		content, finished := readChoice(k, choice)
		found = found || content || finished
	})
	return found
}

// readChoice reports whether a choice has text, tokens, content or a tool call, and whether
// it has a finish reason. In a chat, tokens without text do not count: they are of a tag
// such as <think>, or of held-back text.
func readChoice(k openai.Kind, choice []byte) (content, finished bool) {
	_ = jsonscan.EachMember(choice, 0, func(name []byte, m jsonscan.Member) { // was scanned before
		val := choice[m.Value:m.End]
		switch string(name) {
		case "finish_reason":
			finished = finished || !jsonscan.IsNull(val)
		case "text":
			content = content || hasValue(val)
		case "token_ids":
			content = content || k != openai.Chat && hasValue(val)
		case "delta", "message":
			content = content || deltaHasContent(val)
		}
	})
	return content, finished
}

func deltaHasContent(delta []byte) bool {
	if delta[0] != '{' {
		return false
	}
	found := false
	_ = jsonscan.EachMember(delta, 0, func(name []byte, m jsonscan.Member) { // was scanned before
		switch string(name) {
		case "role", "name":
		default: // content, reasoning, reasoning_content, tool_calls, refusal, audio, and later additions
			found = found || hasValue(delta[m.Value:m.End])
		}
	})
	return found
}

// hasValue reports whether a value is neither null nor empty.
func hasValue(val []byte) bool {
	switch string(val) {
	case "null", `""`, "[]", "{}", "false":
		return false
	}
	return true
}
