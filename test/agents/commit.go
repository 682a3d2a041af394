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

// keptHeaders have values that are words of HTTP or of the API. What depends on the
// moment, or tells who asks, is not recorded.
func keptHeader(name string) bool {
	return slices.Contains([]string{"Accept", "Accept-Encoding", "Anthropic-Beta", "Anthropic-Version", "Connection", "Content-Type"}, name)
}

func leftOut(name string) bool {
	return slices.Contains([]string{"Authorization", "Content-Length", "Host"}, name)
}

// Filled is the recording with filler for texts. Its answers are those of one engine to
// the filled requests; that they have the form of the recorded ones is checked. Every
// body must be JSON, and every answer a stream.
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
			case leftOut(name):
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
		return nil, fmt.Errorf("%w: %d with %d events became %d with %d", errFill, x.Status, len(x.Events), out.Status, len(out.Events))
	}
	for i := range x.Events {
		if err := sameForm(f, x.Events[i], out.Events[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Ask sends the request to a server and takes its answer, which must be whole, for that of
// the exchange.
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

// sameForm compares two events but for which letters and digits they hold, and lets the
// filler of the first one's ids be those of the second.
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
		return fmt.Errorf("%w: an event became another\n%s\n%s", errFill, a, b)
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

// ids lists those of an event, in order.
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
		} else if name = ""; ok && anew(text) {
			name = text
		}
	}
}
