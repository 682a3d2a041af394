package dashboard

import (
	"encoding/json"
	"fmt"
)

// message is one event of the stream: a snapshot with the whole state, or a diff with the
// changes since the last event.
type message struct {
	Now   int64                      `json:"now"`
	Self  *Self                      `json:"self,omitempty"`
	Rows  map[string]json.RawMessage `json:"rows,omitempty"`
	Loads map[string]json.RawMessage `json:"loads,omitempty"`
	Parts map[string]json.RawMessage `json:"parts,omitempty"`
	Feed  []Change                   `json:"feed,omitempty"`
	// History has whole series, in a snapshot and after history.switched; Point has the next point of each.
	History *lines `json:"history,omitempty"`
	Point   *point `json:"point,omitempty"`
}

// lines are all kept points, by name.
type lines struct {
	Step  int                   `json:"step"` // seconds
	Total map[string][]value    `json:"total"`
	Of    map[string][2][]value `json:"of"` // first token, between tokens, by role/address
}

// point has the newest point of each line. Instances without one are absent.
type point struct {
	Total map[string]value    `json:"total"`
	Of    map[string][2]value `json:"of"`
}

func (h *history) lines() *lines {
	out := &lines{Step: step, Total: map[string][]value{}, Of: map[string][2][]value{}}
	for name, r := range h.total {
		out.Total[name] = r.line()
	}
	for k, l := range h.of {
		if first, between := l.first.line(), l.between.line(); first != nil || between != nil {
			out.Of[k.String()] = [2][]value{first, between}
		}
	}
	return out
}

func (h *history) newest() *point {
	out := &point{Total: map[string]value{}, Of: map[string][2]value{}}
	for name, r := range h.total {
		out.Total[name] = r.last()
	}
	for k, l := range h.of {
		if first, between := l.first.last(), l.between.last(); first >= 0 || between >= 0 {
			out.Of[k.String()] = [2]value{first, between}
		}
	}
	return out
}

// event encodes a message as a server-sent event. Its JSON contains no line breaks.
func event(name string, m *message) []byte {
	return fmt.Appendf(nil, "event: %s\ndata: %s\n\n", name, encode(m))
}
