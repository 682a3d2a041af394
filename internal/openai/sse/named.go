package sse

import (
	"bytes"

	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/jsonscan"
)

// Streams of /v1/responses and /v1/messages name their events, and have their own closing events.

// eventName returns the name in the event line of an event, else the type in its data, or
// nil for a comment and for data without a type.
func eventName(event []byte) []byte {
	event = trimmed(event)
	for rest := event; len(rest) > 0; {
		line, tail, _ := bytes.Cut(rest, []byte{'\n'})
		if name, ok := bytes.CutPrefix(line, []byte("event:")); ok {
			return bytes.TrimSpace(name)
		}
		rest = tail
	}
	return jsonscan.FindText(bytes.TrimSpace(EventData(event)), 0, "type")
}

// Classify returns the class of one event of a stream of this kind. code is the status of
// an error, 0 if the error has none.
func Classify(k openai.Kind, event []byte) (class EventClass, code int) {
	switch k {
	case openai.Responses, openai.Messages:
	case openai.Completion, openai.Chat, openai.Generate:
		return classifyChunk(k, event)
	case openai.Other:
		if class, code = classifyChunk(k, event); class == EventPreamble {
			class = EventContent
		}
		return class, code
	}
	name := eventName(event)
	switch {
	case name == nil && len(bytes.TrimSpace(EventData(event))) == 0:
		return EventPreamble, 0 // a comment
	case k == openai.Responses:
		return responsesClass(string(name), event)
	}
	switch string(name) {
	case "message_start", "ping", "content_block_start", "content_block_stop":
		return EventPreamble, 0
	case "error":
		return EventError, 0
	case "":
		if class, code = classifyChunk(k, event); class == EventError { // as vLLM writes them in other streams
			return class, code
		}
	}
	return EventContent, 0
}

// ClosesBlock reports whether an event of /v1/messages closes a block of content: its stop, or the signature
// before that.
func ClosesBlock(event []byte) bool {
	return string(eventName(event)) == "content_block_stop" || bytes.Contains(event, []byte(`"type":"signature_delta"`))
}

// IsDelta reports whether an event of /v1/responses or /v1/messages has a part of the answer's text.
func IsDelta(event []byte) bool {
	return bytes.HasSuffix(eventName(event), []byte("delta")) && !ClosesBlock(event)
}

func responsesClass(name string, event []byte) (class EventClass, code int) {
	switch name {
	case "response.created", "response.queued", "response.in_progress", "response.output_item.added",
		"response.content_part.added", "response.reasoning_part.added", "response.reasoning_summary_part.added",
		"response.mcp_call.in_progress", "response.code_interpreter_call.in_progress", "response.web_search_call.in_progress":
		return EventPreamble, 0
	case "error", "response.failed":
		return EventError, 0
	case "": // as vLLM writes errors in other streams
		return classifyChunk(openai.Responses, event)
	}
	return EventContent, 0
}

// Sign is the meaning of an event after the commit for its stream.
type Sign uint8

// The signs.
const (
	SignNone      Sign = iota
	SignEnd            // the closing event
	SignFailedEnd      // the closing event of a failed response
	SignError          // an error, after which no closing event follows
	SignAborted        // the engine aborted the request
)

// SignOf returns the meaning of an event for the end of its stream. It runs for every
// event, so it must be fast.
func SignOf(k openai.Kind, event []byte) Sign {
	switch k {
	case openai.Responses, openai.Messages:
		switch string(eventName(event)) {
		case "message_delta":
			if Aborted(k, event) {
				return SignAborted
			}
		case "response.completed", "response.incomplete":
			if Aborted(k, event) {
				return SignAborted
			}
			return SignEnd
		case "message_stop":
			return SignEnd
		case "response.failed":
			return SignFailedEnd
		case "error":
			return SignError
		}
	case openai.Completion, openai.Chat, openai.Generate, openai.Other:
		if IsDone(event) {
			return SignEnd
		}
		if Aborted(k, event) {
			return SignAborted
		}
	}
	if LooksLikeError(event) {
		return SignError
	}
	return SignNone
}

// ErrorOf returns the error of an error event as the body of a non-streamed response.
func ErrorOf(k openai.Kind, event []byte) []byte {
	data := bytes.TrimSpace(EventData(event))
	if _, typed := jsonscan.Find(data, 0, "type"); k != openai.Responses && (k != openai.Messages || typed) {
		return bytes.Clone(data) // the stream's buffer is reused before the client gets it
	}
	if m, ok := jsonscan.Find(data, 0, "response"); ok {
		data = data[m.Value:m.End]
	}
	e := openai.Error{Status: 500, Type: openai.TypeInternal, Message: "the engine reported an error in the stream"}
	said := data
	if m, ok := jsonscan.Find(data, 0, "error"); ok {
		said = data[m.Value:m.End]
	}
	if message := jsonscan.FindText(said, 0, "message"); message != nil {
		e.Message = string(message)
	}
	return k.ErrorJSON(&e)
}
