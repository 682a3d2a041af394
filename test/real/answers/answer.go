package answers

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
)

// Answer is a response in the form that is compared: a tree of maps, lists, strings, numbers and booleans.
type Answer map[string]any

// volatile are headers that depend on the time or the connection.
var volatile = []string{"Connection", "Content-Length", "Date", "Keep-Alive", "Transfer-Encoding"}

// Read reads a whole response and closes its body.
func Read(resp *http.Response) (Answer, error) {
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("the body after %d bytes: %w", len(raw), err)
	}
	headers := map[string]any{}
	for name, values := range resp.Header {
		if !slices.Contains(volatile, name) {
			headers[name] = strings.Join(values, ", ")
		}
	}
	return Answer{"status": float64(resp.StatusCode), "headers": headers, "body": body(resp.Header.Get("Content-Type"), raw)}, nil
}

func body(contentType string, raw []byte) any {
	if strings.HasPrefix(contentType, "text/event-stream") {
		return stream(raw)
	}
	var v any
	if json.Unmarshal(raw, &v) != nil {
		return string(raw)
	}
	return steady(v)
}

// steady replaces values that differ in each response by their form.
func steady(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for name, value := range v {
			switch name {
			case "created", "created_at":
				if _, ok := value.(float64); ok {
					v[name] = "a time"
				}
			case "id", "request_id", "call_id", "item_id":
				if s, ok := value.(string); ok {
					v[name] = idForm(s)
				}
			default:
				v[name] = steady(value)
			}
		}
	case []any:
		for i := range v {
			v[i] = steady(v[i])
		}
	}
	return v
}

// idForm returns the form of an ID, which shows its kind: that of chatcmpl-8d... is chatcmpl-.
func idForm(id string) string {
	for _, kind := range []string{"generate-tokens-", "chatcmpl-tool-", "chatcmpl-", "cmpl-", "modelperm-", "resp_", "msg_", "call_", "tool_"} {
		if strings.HasPrefix(id, kind) {
			return kind + "..."
		}
	}
	return id
}

// stream merges the events of a response: the texts of each choice and the members of its chunks. The number
// of tokens in an event depends on timing and is ignored.
func stream(raw []byte) any {
	s := newMerger()
	for event := range strings.SplitSeq(strings.TrimSpace(strings.ReplaceAll(string(raw), "\r\n", "\n")), "\n\n") {
		var data []string
		for line := range strings.SplitSeq(event, "\n") {
			switch name, value, _ := strings.Cut(line, ":"); name {
			case "data":
				data = append(data, strings.TrimPrefix(value, " "))
			case "event":
				s.kinds[strings.TrimSpace(value)] = true
			case "": // comment
			default:
				s.out["field "+name] = true
			}
		}
		s.event(strings.Join(data, "\n"))
	}
	return s.end()
}

type merger struct {
	out     map[string]any
	choices map[string]map[string]any
	members map[string]bool // of chunks, choices and deltas
	kinds   map[string]bool // of named events
	text    strings.Builder // of named events
	usages  int
	chunks  int
}

func newMerger() *merger {
	return &merger{out: map[string]any{}, choices: map[string]map[string]any{}, members: map[string]bool{}, kinds: map[string]bool{}}
}

func (m *merger) event(data string) {
	if data == "" {
		return
	}
	if m.out["done"] != nil {
		m.out["behind done"] = data
	}
	if data == "[DONE]" {
		m.out["done"] = true
		return
	}
	var chunk map[string]any
	d := json.NewDecoder(bytes.NewReader([]byte(data)))
	if d.Decode(&chunk) != nil {
		m.out["not JSON"] = data
		return
	}
	steady(chunk)
	m.chunks++
	choices, _ := chunk["choices"].([]any)
	for name, value := range chunk {
		m.members[name] = true
		switch name {
		case "choices":
		case "usage":
			if value != nil {
				m.out["usage"] = value
				if len(choices) > 0 {
					m.usages++
				}
			}
		case "delta": // of a named event
			if delta, ok := value.(map[string]any); ok {
				text, _ := delta["text"].(string)
				m.text.WriteString(text)
			}
		case "message", "content_block", "response", "item", "part", "index", "sequence_number", "type", "text":
		default:
			if value != nil || m.out[name] == nil {
				m.out[name] = value
			}
		}
	}
	for _, c := range choices {
		if choice, ok := c.(map[string]any); ok {
			m.choice(choice)
		}
	}
}

func (m *merger) choice(choice map[string]any) {
	key := fmt.Sprint(choice["index"])
	into := m.choices[key]
	if into == nil {
		into = map[string]any{}
		m.choices[key] = into
	}
	for name, value := range choice {
		m.members["choices[]."+name] = true
		if delta, ok := value.(map[string]any); ok && name == "delta" {
			for part := range delta {
				m.members["choices[].delta."+part] = true
			}
		}
	}
	join(into, choice)
}

// join appends a piece to the previous pieces. Strings and lists grow, and tool calls are merged by index.
// For other values, the last one that is not null is kept.
func join(into, piece map[string]any) {
	for name, value := range piece {
		switch value := value.(type) {
		case nil:
			if _, ok := into[name]; !ok {
				into[name] = nil
			}
		case string:
			before, _ := into[name].(string)
			switch name {
			case "role", "id", "type", "name", "finish_reason":
				into[name] = value
			default:
				into[name] = before + value
			}
		case []any:
			before, _ := into[name].([]any)
			if name == "tool_calls" {
				into[name] = joinCalls(before, value)
			} else {
				into[name] = append(before, value...)
			}
		case map[string]any:
			inner, _ := into[name].(map[string]any)
			if inner == nil {
				inner = map[string]any{}
				into[name] = inner
			}
			join(inner, value)
		default:
			into[name] = value
		}
	}
}

func joinCalls(calls, pieces []any) []any {
	for _, p := range pieces {
		piece, _ := p.(map[string]any)
		at := slices.IndexFunc(calls, func(c any) bool {
			call, _ := c.(map[string]any)
			return call["index"] == piece["index"]
		})
		if at < 0 {
			calls, at = append(calls, map[string]any{}), len(calls)
		}
		join(calls[at].(map[string]any), piece)
	}
	return calls
}

func (m *merger) end() any {
	for key, choice := range m.choices {
		m.out["choice "+key] = choice
	}
	for set, name := range map[*map[string]bool]string{&m.members: "members", &m.kinds: "events"} {
		list := []any{}
		for member := range *set {
			list = append(list, member)
		}
		slices.SortFunc(list, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
		m.out[name] = list
	}
	if m.text.Len() > 0 {
		m.out["text"] = m.text.String()
	}
	m.out["usage in every chunk"] = m.usages > 1 && m.usages >= m.chunks-1
	return m.out
}
