package agents

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"unicode"

	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// keptHeader reports whether a header's value consists of words of HTTP or of the API. Headers that
// depend on the time or identify the client are not recorded.
func keptHeader(name string) bool {
	return slices.Contains([]string{"Accept", "Accept-Encoding", "Anthropic-Beta", "Anthropic-Version", "Connection", "Content-Type"}, name)
}

func omittedHeader(name string) bool {
	return slices.Contains([]string{"Authorization", "Content-Length", "Host"}, name)
}

// Filled returns the recording with its texts replaced by filler. Its responses are those of a simulated
// engine to the filled requests; an error is returned if their form differs from the recorded ones.
// Every body must be JSON, and every response a stream.
func (r *Recording) Filled(ctx context.Context) (*Recording, error) {
	f := NewFiller()
	out := &Recording{Agent: r.Agent, Version: r.Version, Command: r.Command}
	for _, t := range r.Turns {
		filled := fakevllm.Turn{Thinking: f.Text(t.Thinking), Text: f.Text(t.Text)}
		for _, c := range t.Calls {
			w := walker{f: f, in: c.Input}
			if err := w.value(place{arguments: true}); err != nil {
				return nil, err
			}
			filled.Calls = append(filled.Calls, fakevllm.ToolCall{Name: f.Text(c.Name), Input: w.out})
		}
		out.Turns = append(out.Turns, filled)
	}
	s, err := fakevllm.Start(ctx, fakevllm.Options{Models: []string{"m"}, PromptTokensDetails: true, Turns: out.Turns})
	if err != nil {
		return nil, err
	}
	defer s.Close()
	for i := range r.Exchanges {
		x, err := r.Exchanges[i].filled(ctx, f, s.URL())
		if err != nil {
			return nil, fmt.Errorf("exchange %d: %w", i, err)
		}
		out.Exchanges = append(out.Exchanges, *x)
	}
	return out, nil
}

func (x *Exchange) filled(ctx context.Context, f *Filler, engine string) (*Exchange, error) {
	out := &Exchange{Method: x.Method, Target: x.Target, Header: http.Header{}}
	for name, values := range x.Header {
		for _, value := range values {
			switch {
			case omittedHeader(name):
				continue
			case !keptHeader(name):
				value = f.Text(value)
			}
			out.Header.Add(name, value)
		}
	}
	var err error
	if out.Body, err = f.JSON(x.Body); err != nil {
		return nil, err
	}
	if err := out.Ask(ctx, http.DefaultClient, engine); err != nil {
		return nil, err
	}
	if out.Status != x.Status || len(out.Events) != len(x.Events) {
		return nil, fmt.Errorf("%w: status %d with %d events changed to %d with %d", errFill, x.Status, len(x.Events), out.Status, len(out.Events))
	}
	for i := range x.Events {
		if err := sameForm(f, x.Events[i], out.Events[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Ask sends the request to a server and stores its status and events in the exchange. The response must
// be complete.
func (x *Exchange) Ask(ctx context.Context, client *http.Client, server string) error {
	req, err := http.NewRequestWithContext(ctx, x.Method, server+x.Target, strings.NewReader(string(x.Body)))
	if err != nil {
		return err
	}
	req.Header = x.Header.Clone()
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	x.Status, x.Events = resp.StatusCode, Events(body)
	return err
}

// sameForm returns an error if two events differ in more than their letters and digits, and registers
// the IDs of the second event as fillers of those of the first.
func sameForm(f *Filler, recorded, filled string) error {
	a, err := Steady(recorded)
	if err != nil {
		return err
	}
	b, err := Steady(filled)
	if err != nil {
		return err
	}
	if classes(a) != classes(b) {
		return fmt.Errorf("%w: the form of an event changed\n%s\n%s", errFill, a, b)
	}
	was, is := ids(recorded), ids(filled)
	for i := range was {
		f.Know(was[i], is[i])
	}
	return nil
}

func classes(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.IsDigit(r):
			return '0'
		case unicode.IsUpper(r):
			return 'X'
		case unicode.IsLetter(r):
			return 'x'
		}
		return r
	}, text)
}

// ids returns the IDs of an event in order.
func ids(event string) (out []string) {
	_, data, _ := strings.Cut(event, "\ndata: ")
	d := json.NewDecoder(strings.NewReader(data))
	name := ""
	for {
		token, err := d.Token()
		if err != nil {
			return out
		}
		text, ok := token.(string)
		if ok && name != "" {
			out = append(out, text)
			name = ""
		} else if name = ""; ok && regenerated(text) {
			name = text
		}
	}
}
