package pydantic

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// PyRepr is Python's repr of a text.
func PyRepr(s string) string {
	quote := '\''
	if strings.ContainsRune(s, '\'') && !strings.ContainsRune(s, '"') {
		quote = '"'
	}
	var b strings.Builder
	b.WriteRune(quote)
	for _, r := range s {
		switch {
		case r == quote, r == '\\':
			b.WriteRune('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case unicode.IsPrint(r):
			b.WriteRune(r)
		case r < 0x100:
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	b.WriteRune(quote)
	return b.String()
}

// Describe is vLLM's summary of a value that was refused.
func Describe(raw []byte) string {
	if len(raw) == 0 {
		return "None"
	}
	switch raw[0] {
	case '{':
		names := map[string]bool{}
		_ = ForEachMember(raw, func(key string, _ []byte) error { names[key] = true; return nil }) // was read before
		return fmt.Sprintf("<dict of %d items>", len(names))
	case '[':
		n := 0
		_ = ForEachElement(raw, func(int, []byte) error { n++; return nil }) // likewise
		return fmt.Sprintf("<list of %d items>", n)
	case '"':
		s, _ := Unquote(raw) // likewise
		if r := []rune(s); len(r) > 200 {
			return string(r[:200]) + "...[truncated]"
		}
		return s
	case 'n':
		return "None"
	case 't':
		return "True"
	case 'f':
		return "False"
	}
	if !bytes.ContainsAny(raw, ".eEIN") {
		return string(raw)
	}
	f, _ := strconv.ParseFloat(string(raw), 64) // out of range: infinite
	return PyFloat(f)
}

// Decode finds the text of a body as Python's json does: by its first bytes it takes
// UTF-8, UTF-16 or UTF-32, with a mark or without. ok is false for what is no text.
func Decode(body []byte) (text []byte, ok bool) {
	unit, order := encoding(body)
	switch unit {
	case 1:
		text = bytes.TrimPrefix(body, []byte("\ufeff"))
		return text, utf8.Valid(text)
	case 2:
		if len(body)%2 != 0 {
			return nil, false
		}
		units := make([]uint16, 0, len(body)/2)
		for i := 0; i < len(body); i += 2 {
			units = append(units, order.Uint16(body[i:]))
		}
		text = []byte(string(utf16.Decode(units)))
	case 4:
		if len(body)%4 != 0 {
			return nil, false
		}
		for i := 0; i < len(body); i += 4 {
			text = utf8.AppendRune(text, rune(order.Uint32(body[i:])))
		}
	}
	return bytes.TrimPrefix(text, []byte("\ufeff")), true
}

func encoding(b []byte) (unit int, order binary.ByteOrder) {
	zero := func(i int) bool { return i < len(b) && b[i] == 0 }
	switch {
	case bytes.HasPrefix(b, []byte{0, 0, 0xfe, 0xff}):
		return 4, binary.BigEndian
	case bytes.HasPrefix(b, []byte{0xff, 0xfe, 0, 0}):
		return 4, binary.LittleEndian
	case bytes.HasPrefix(b, []byte{0xfe, 0xff}):
		return 2, binary.BigEndian
	case bytes.HasPrefix(b, []byte{0xff, 0xfe}):
		return 2, binary.LittleEndian
	case len(b) >= 4 && zero(0) && zero(1):
		return 4, binary.BigEndian
	case len(b) >= 2 && zero(0):
		return 2, binary.BigEndian
	case len(b) >= 4 && zero(1) && zero(2) && zero(3):
		return 4, binary.LittleEndian
	case len(b) >= 2 && zero(1):
		return 2, binary.LittleEndian
	}
	return 1, nil
}

// pyJSON reads a text as Python's json does, NaN and the infinities among the numbers.
// It is for texts in which something is wrong: it is slow, and says what and where.
type pyJSON struct{ b []byte }

type pyError struct {
	msg string
	at  int
}

// Explain returns the complaint about a text that is no JSON, nil if it is.
func Explain(text []byte) *Error {
	p := pyJSON{text}
	i, err := p.value(p.space(0))
	if err == nil {
		if i = p.space(i); i < len(text) {
			err = &pyError{"Extra data", i}
		}
	}
	if err == nil {
		return nil
	}
	loc := fmt.Sprintf("body.%d", utf8.RuneCount(text[:err.at]))
	return Complaints(Problem{Kind: "json_invalid", Loc: loc, Msg: "JSON decode error", Input: "<dict of 0 items>",
		Ctx: "'error': " + PyRepr(err.msg)})
}

func (p pyJSON) space(i int) int { return SkipSpace(p.b, i) }

func (p pyJSON) has(i int, word string) bool {
	return bytes.HasPrefix(p.b[min(i, len(p.b)):], []byte(word))
}

func (p pyJSON) value(i int) (int, *pyError) {
	for _, word := range []string{"null", "true", "false", "NaN", "Infinity", "-Infinity"} {
		if p.has(i, word) {
			return i + len(word), nil
		}
	}
	switch {
	case p.has(i, `"`):
		return p.text(i)
	case p.has(i, "{"):
		return p.object(i)
	case p.has(i, "["):
		return p.list(i)
	}
	return p.number(i)
}

func (p pyJSON) number(i int) (int, *pyError) {
	digits := func(k int) int {
		for k < len(p.b) && p.b[k] >= '0' && p.b[k] <= '9' {
			k++
		}
		return k
	}
	k := i
	if p.has(k, "-") {
		k++
	}
	switch end := digits(k); {
	case end == k:
		return i, &pyError{"Expecting value", i}
	case p.b[k] == '0':
		k++
	default:
		k = end
	}
	if p.has(k, ".") {
		if end := digits(k + 1); end > k+1 {
			k = end
		}
	}
	if p.has(k, "e") || p.has(k, "E") {
		e := k + 1
		if p.has(e, "+") || p.has(e, "-") {
			e++
		}
		if end := digits(e); end > e {
			k = end
		}
	}
	return k, nil
}

func (p pyJSON) text(i int) (int, *pyError) {
	for k := i + 1; k < len(p.b); k++ {
		switch c := p.b[k]; {
		case c == '"':
			return k + 1, nil
		case c < 0x20:
			return k, &pyError{"Invalid control character at", k}
		case c != '\\':
		case k+1 == len(p.b):
			return k, &pyError{"Unterminated string starting at", i}
		case p.b[k+1] == 'u':
			for h := k + 2; h < k+6; h++ {
				if h >= len(p.b) || !strings.ContainsRune("0123456789abcdefABCDEF", rune(p.b[h])) {
					return k, &pyError{`Invalid \uXXXX escape`, k + 1}
				}
			}
			k += 5
		case strings.IndexByte(`"\/bfnrt`, p.b[k+1]) < 0:
			return k, &pyError{`Invalid \escape`, k}
		default:
			k++
		}
	}
	return i, &pyError{"Unterminated string starting at", i}
}

func (p pyJSON) object(i int) (int, *pyError) {
	if i = p.space(i + 1); p.has(i, "}") {
		return i + 1, nil
	}
	for {
		if !p.has(i, `"`) {
			return i, &pyError{"Expecting property name enclosed in double quotes", i}
		}
		end, err := p.text(i)
		if err != nil {
			return i, err
		}
		if i = p.space(end); !p.has(i, ":") {
			return i, &pyError{"Expecting ':' delimiter", i}
		}
		if end, err = p.value(p.space(i + 1)); err != nil {
			return i, err
		}
		switch i = p.space(end); {
		case p.has(i, "}"):
			return i + 1, nil
		case !p.has(i, ","):
			return i, &pyError{"Expecting ',' delimiter", i}
		}
		i = p.space(i + 1)
	}
}

func (p pyJSON) list(i int) (int, *pyError) {
	if i = p.space(i + 1); p.has(i, "]") {
		return i + 1, nil
	}
	for {
		end, err := p.value(i)
		if err != nil {
			return i, err
		}
		switch i = p.space(end); {
		case p.has(i, "]"):
			return i + 1, nil
		case !p.has(i, ","):
			return i, &pyError{"Expecting ',' delimiter", i}
		}
		i = p.space(i + 1)
	}
}

// PyFloat prints a float as Python does: 3 as 3.0.
func PyFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	}
	s := strconv.FormatFloat(f, 'g', -1, 64)
	if a := math.Abs(f); a >= 1e-4 && a < 1e16 {
		s = strconv.FormatFloat(f, 'f', -1, 64)
	}
	if !strings.ContainsAny(s, ".e") {
		s += ".0"
	}
	return s
}
