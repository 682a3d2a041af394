package agents

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// consonants are the letters of filler, which therefore contains no words of a dictionary.
const consonants = "bcdfghjklmnpqrstvwxz"

// kept reports whether the values of a member are words of the API or of JSON Schema.
func kept(name string) bool {
	return slices.Contains([]string{
		"type", "role", "status", "model", "effort", "display", "keep", "tool_choice", "summary", "include", "ttl", "$schema", "format",
	}, name)
}

// Filler replaces texts by filler. The same text always has the same filler, so that names and repeated
// texts of a conversation remain equal. Filler is random: the original text cannot be derived from it.
type Filler struct {
	known map[string]string
	used  map[string]bool
}

// NewFiller returns a Filler without known texts.
func NewFiller() *Filler { return &Filler{known: map[string]string{}, used: map[string]bool{}} }

// Know sets the filler of a text.
func (f *Filler) Know(text, filler string) {
	f.known[text], f.used[filler] = filler, true
}

// Text returns the filler of a text, which may be the raw contents of a JSON string: escapes are kept.
func (f *Filler) Text(text string) string {
	if filler, ok := f.known[text]; ok {
		return filler
	}
	for try := 0; ; try++ {
		filler := random(text)
		// A filler used for another text would make two names equal. Short texts have few possible
		// fillers.
		if !f.used[filler] || filler == text || try == 100 {
			f.Know(text, filler)
			return filler
		}
	}
}

// random replaces letters and digits by random ones.
func random(text string) string {
	var out strings.Builder
	for i := 0; i < len(text); {
		if text[i] == '\\' { // escape sequence
			n := min(2, len(text)-i)
			if n == 2 && text[i+1] == 'u' {
				n = min(6, len(text)-i)
			}
			out.WriteString(text[i : i+n])
			i += n
			continue
		}
		r, n := utf8.DecodeRuneInString(text[i:])
		i += n
		switch letter := rune(consonants[rand.IntN(len(consonants))]); {
		case '0' <= r && r <= '9':
			out.WriteByte(byte('0' + rand.IntN(10)))
		case r < utf8.RuneSelf && unicode.IsUpper(r):
			out.WriteRune(unicode.ToUpper(letter))
		case r < utf8.RuneSelf && unicode.IsLower(r):
			out.WriteRune(letter)
		case r >= utf8.RuneSelf && unicode.IsLetter(r):
			out.WriteString([]string{"", "", "ñ", "ㅋ", "𝐛"}[n])
		default:
			out.WriteRune(r)
		}
	}
	return out.String()
}

var errFill = errors.New("cannot be filled")

// JSON returns a document with filler. Member names are kept, except those of tool arguments; values are
// replaced, except words of the API.
func (f *Filler) JSON(doc []byte) ([]byte, error) {
	w := walker{f: f, in: doc}
	if err := w.value(place{}); err != nil {
		return nil, err
	}
	w.blanks()
	if w.at != len(doc) || len(w.out) != len(doc) {
		return nil, fmt.Errorf("%w: %d bytes became %d", errFill, len(doc), len(w.out))
	}
	return w.out, nil
}

// place describes the position of a value.
type place struct {
	keep       bool // word of the API
	input      bool // arguments if it is an object; a list holds items
	arguments  bool // arguments of a tool: their member names belong to the tool
	properties bool // properties of a schema, whose member names are replaced likewise
	encoded    bool // string that contains arguments as JSON
}

// member returns the place of a member's value.
func (p place) member(name string) place {
	switch {
	case p.arguments:
		return p
	case p.properties:
		return place{}
	}
	return place{keep: kept(name), input: name == "input", properties: name == "properties", encoded: name == "arguments"}
}

// walker copies a document and replaces its texts by filler.
type walker struct {
	f   *Filler
	in  []byte
	at  int
	out []byte
}

// blanks copies blanks.
func (w *walker) blanks() {
	for w.at < len(w.in) && strings.IndexByte(" \t\r\n", w.in[w.at]) >= 0 {
		w.out = append(w.out, w.in[w.at])
		w.at++
	}
}

// upTo copies blanks, and the next byte if it is the expected one.
func (w *walker) upTo(want byte) bool {
	w.blanks()
	if w.at == len(w.in) || w.in[w.at] != want {
		return false
	}
	w.out = append(w.out, want)
	w.at++
	return true
}

func (w *walker) value(p place) error {
	switch {
	case w.upTo('{'):
		p.arguments = p.arguments || p.input
		return w.list('}', func() error {
			name, err := w.raw()
			if err != nil {
				return err
			}
			written := name
			if p.arguments || p.properties {
				written = w.f.Text(name)
			}
			w.quoted(written)
			if !w.upTo(':') {
				return fmt.Errorf("%w: no colon at %d", errFill, w.at)
			}
			return w.value(p.member(name))
		})
	case w.upTo('['):
		p.input = false
		return w.list(']', func() error { return w.value(p) })
	case w.at < len(w.in) && w.in[w.at] == '"':
		text, err := w.raw()
		if err != nil {
			return err
		}
		return w.text(p, text)
	}
	for w.at < len(w.in) && strings.IndexByte(",]} \t\r\n", w.in[w.at]) < 0 { // a number, a boolean, null
		w.out = append(w.out, w.in[w.at])
		w.at++
	}
	return nil
}

func (w *walker) list(end byte, item func() error) error {
	if w.upTo(end) {
		return nil
	}
	for {
		if err := item(); err != nil {
			return err
		}
		if w.upTo(end) {
			return nil
		}
		if !w.upTo(',') {
			return fmt.Errorf("%w: no comma at %d", errFill, w.at)
		}
	}
}

// raw reads the contents of a string between its quotes.
func (w *walker) raw() (string, error) {
	w.blanks()
	if w.at == len(w.in) || w.in[w.at] != '"' {
		return "", fmt.Errorf("%w: no string at %d", errFill, w.at)
	}
	for i := w.at + 1; i < len(w.in); i++ {
		switch w.in[i] {
		case '\\':
			i++
		case '"':
			text := string(w.in[w.at+1 : i])
			w.at = i + 1
			return text, nil
		}
	}
	return "", fmt.Errorf("%w: no end of a string at %d", errFill, w.at)
}

func (w *walker) quoted(text string) { w.out = append(append(append(w.out, '"'), text...), '"') }

func (w *walker) text(p place, text string) error {
	switch {
	case p.keep:
		w.quoted(text)
	case p.encoded:
		var inner string
		if err := json.Unmarshal([]byte(`"`+text+`"`), &inner); err != nil {
			return err
		}
		in := walker{f: w.f, in: []byte(inner)}
		if err := in.value(place{arguments: true}); err != nil {
			return err
		}
		again, err := encode(string(in.out))
		if err != nil {
			return err
		}
		w.out = append(w.out, again...)
	default:
		w.quoted(w.f.Text(text))
	}
	return nil
}

// encode marshals to JSON without unnecessary escapes.
func encode(v any) ([]byte, error) {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSpace(out.Bytes()), err
}
