package relay

import (
	"bytes"
	"errors"

	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/jsonscan"
)

// ModelName puts the model that the client named into an answer: the engine reports its own name for it.
type ModelName struct {
	Kind openai.Kind
	Name string // as JSON
}

// Affects implements Rewriter.
func (*ModelName) Affects(b []byte) bool { return bytes.Contains(b, []byte(`"model"`)) }

// Rewrite implements Rewriter.
func (m *ModelName) Rewrite(b []byte) []byte {
	at := m.find(b)
	if at.End == 0 {
		return b
	}
	return jsonscan.Replaced(b, at.Value, at.End, []byte(m.Name))
}

// find returns the model of an answer or of an event. Some events of /v1/responses and
// /v1/messages have it inside the answer that they carry.
func (m *ModelName) find(b []byte) (at jsonscan.Member) {
	open := bytes.IndexByte(b, '{') // after "data: " in an event
	if open < 0 {
		return at
	}
	s := jsonscan.Scanner{Text: b}
	visit := func(one jsonscan.Member) error {
		switch string(jsonscan.Unquote(b[one.Key:one.KeyEnd])) {
		case "model":
			at = one
			return errFound // the model is at the start, before the long members
		case "response", "message":
			if inner := m.Kind == openai.Responses || m.Kind == openai.Messages; inner && b[one.Value] == '{' {
				at, _ = jsonscan.Find(b, one.Value, "model")
			}
		}
		return nil
	}
	if _, err := s.Members(open, 0, visit); err != nil && !errors.Is(err, errFound) || at.End == 0 || b[at.Value] != '"' {
		return jsonscan.Member{}
	}
	return at
}

var errFound = errors.New("found")
