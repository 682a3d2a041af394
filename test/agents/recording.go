package agents

import (
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"slices"
	"strings"

	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// Recording is the sequence of an agent's requests and their responses.
type Recording struct {
	Agent, Version string          // name and version of its package
	Command        string          // command line
	Turns          []fakevllm.Turn // scripted answers of the model
	Exchanges      []Exchange
}

// Exchange is a request and its response.
type Exchange struct {
	Method, Target string // Target includes the query
	Header         http.Header
	Body           []byte
	Status         int
	Events         []string // raw events of the stream, each without the blank line after it
}

// Path returns the target without its query.
func (x *Exchange) Path() string {
	path, _, _ := strings.Cut(x.Target, "?")
	return path
}

//go:embed recordings
var files embed.FS

// Recordings returns the committed recordings.
func Recordings() ([]*Recording, error) {
	names, err := fs.Glob(files, "recordings/*.txt")
	if err != nil {
		return nil, err
	}
	var out []*Recording
	for _, name := range names {
		raw, err := files.ReadFile(name)
		if err != nil {
			return nil, err
		}
		r, err := Parse(raw)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		out = append(out, r)
	}
	return out, nil
}

// errRecording is the base of all parse errors.
var errRecording = errors.New("not a recording")

// Format returns the text form of a recording:
//
//	agent: its package          (likewise: version, command, turns)
//	===
//	> a line of the request; an empty one ends the header, and the body is one line
//	< 200
//	< a line of the response; an empty one ends an event
func (r *Recording) Format() ([]byte, error) {
	turns, err := encode(r.Turns)
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "agent: %s\nversion: %s\ncommand: %s\nturns: %s\n", r.Agent, r.Version, r.Command, turns)
	for _, x := range r.Exchanges {
		fmt.Fprintf(&b, "===\n> %s %s HTTP/1.1\n", x.Method, x.Target)
		var names []string
		for name := range x.Header {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			for _, value := range x.Header[name] {
				fmt.Fprintf(&b, "> %s: %s\n", name, value)
			}
		}
		if slices.Contains(x.Body, '\n') {
			return nil, fmt.Errorf("%w: the body has several lines", errRecording)
		}
		fmt.Fprintf(&b, ">\n> %s\n< %d\n", x.Body, x.Status)
		for _, event := range x.Events {
			for line := range strings.SplitSeq(event, "\n") {
				fmt.Fprintf(&b, "< %s\n", line)
			}
			b.WriteString("<\n")
		}
	}
	return []byte(b.String()), nil
}

// Parse parses the output of Format.
func Parse(raw []byte) (*Recording, error) {
	r := &Recording{}
	var x *Exchange
	head, event := false, ""
	for n, line := range strings.Split(strings.TrimSuffix(string(raw), "\n"), "\n") {
		bad := func(why string) error { return fmt.Errorf("%w: line %d: %s", errRecording, n+1, why) }
		mark, rest, _ := strings.Cut(line, " ")
		switch {
		case line == "===":
			r.Exchanges = append(r.Exchanges, Exchange{Header: http.Header{}})
			x, head = &r.Exchanges[len(r.Exchanges)-1], true
		case x == nil:
			if err := r.field(strings.TrimSuffix(mark, ":"), rest); err != nil {
				return nil, bad(err.Error())
			}
		case mark == ">" && head && x.Method == "":
			parts := strings.Fields(rest)
			if len(parts) != 3 {
				return nil, bad("no request line")
			}
			x.Method, x.Target = parts[0], parts[1]
		case mark == ">" && head && rest == "":
			head = false
		case mark == ">" && head:
			name, value, _ := strings.Cut(rest, ": ")
			x.Header[name] = append(x.Header[name], value)
		case mark == ">":
			x.Body = []byte(rest)
		case mark == "<" && x.Status == 0:
			if _, err := fmt.Sscan(rest, &x.Status); err != nil {
				return nil, bad("no status")
			}
		case line == "<":
			x.Events, event = append(x.Events, strings.TrimSuffix(event, "\n")), ""
		case mark == "<":
			event += rest + "\n"
		default:
			return nil, bad("a line without a mark")
		}
	}
	if r.Agent == "" || r.Version == "" || len(r.Turns) == 0 || len(r.Exchanges) == 0 {
		return nil, fmt.Errorf("%w: no agent, version, turns or exchange", errRecording)
	}
	return r, nil
}

func (r *Recording) field(name, value string) (err error) {
	switch name {
	case "agent":
		r.Agent = value
	case "version":
		r.Version = value
	case "command":
		r.Command = value
	case "turns":
		r.Turns, err = fakevllm.ReadTurns(strings.NewReader(value))
	default:
		err = fmt.Errorf("no field is called %q", name)
	}
	return err
}

// Events splits a stream into its events.
func Events(stream []byte) []string {
	text := strings.TrimSuffix(string(stream), "\n\n")
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n\n")
}

// Steady returns an event with the values that differ in each response, which are IDs, signatures and
// times, replaced by "".
func Steady(event string) (string, error) {
	name, data, ok := strings.Cut(event, "\ndata: ")
	if !ok {
		return event, nil
	}
	var v any
	if err := json.Unmarshal([]byte(data), &v); err != nil {
		return "", fmt.Errorf("%w in %s", err, event)
	}
	out, err := encode(blank(v))
	return name + "\ndata: " + string(out), err
}

// regenerated reports whether the value of a member differs in each response.
func regenerated(name string) bool {
	return slices.Contains([]string{"id", "item_id", "call_id", "signature", "created_at"}, name)
}

func blank(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for name, value := range v {
			if regenerated(name) {
				v[name] = ""
			} else {
				v[name] = blank(value)
			}
		}
	case []any:
		for i := range v {
			v[i] = blank(v[i])
		}
	}
	return v
}
