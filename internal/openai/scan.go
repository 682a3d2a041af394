package openai

import (
	"fmt"

	"github.com/pdmesh/pdmesh/internal/openai/strscan"
)

// maxDepth bounds nesting; vLLM's own parser gives up near 1000 levels.
const maxDepth = 512

// syntaxError is every error of the scanner, in the words of Python's parser, which
// vLLM passes on.
type syntaxError struct {
	pos  int // in bytes
	what string
}

func (e *syntaxError) Error() string {
	return fmt.Sprintf("invalid JSON: %s at byte %d", e.what, e.pos)
}

// The words of Python's parser.
const (
	wantValue     = "Expecting value"
	wantName      = "Expecting property name enclosed in double quotes"
	wantColon     = "Expecting ':' delimiter"
	wantComma     = "Expecting ',' delimiter"
	extraData     = "Extra data"
	openString    = "Unterminated string starting at"
	badControl    = "Invalid control character at"
	badEscape     = `Invalid \escape`
	badHexEscape  = `Invalid \uXXXX escape`
	nestedTooDeep = "nested too deeply" // ours: Python takes more levels
)

func syntaxErrorAt(pos int, what string) error { return &syntaxError{pos, what} }

// scanner validates JSON (RFC 8259) without building anything. Its methods
// take the position where a token begins and give the position after it.
type scanner struct {
	b []byte
	// b[high:highEnd] has all bytes above 0x7f that str has met. They are UTF-8
	// if this is, since it is cut at quotes.
	high, highEnd int
	// several tells that the array whose end was met last has more than one
	// element, unless the first is a number.
	several bool
}

func (s *scanner) space(i int) int {
	for i < len(s.b) {
		switch s.b[i] {
		case ' ', '\n', '\r', '\t':
			i++
		default:
			return i
		}
	}
	return i
}

// value checks the value that begins at i.
func (s *scanner) value(i, depth int) (int, error) {
	if i >= len(s.b) {
		return i, syntaxErrorAt(i, wantValue)
	}
	switch c := s.b[i]; {
	case c == '"':
		return s.str(i)
	case c == '{':
		return s.object(i, depth)
	case c == '[':
		return s.array(i, depth)
	case c == '-' || (c >= '0' && c <= '9'):
		return s.number(i)
	case c == 't':
		return s.literal(i, "true")
	case c == 'f':
		return s.literal(i, "false")
	case c == 'n':
		return s.literal(i, "null")
	default:
		return i, syntaxErrorAt(i, wantValue)
	}
}

func (s *scanner) literal(i int, word string) (int, error) {
	if len(s.b)-i < len(word) || string(s.b[i:i+len(word)]) != word {
		return i, syntaxErrorAt(i, wantValue)
	}
	return i + len(word), nil
}

func (s *scanner) number(i int) (int, error) {
	b, start := s.b, i
	if b[i] == '-' {
		i++
	}
	switch {
	case i < len(b) && b[i] == '0':
		i++
	case i < len(b) && b[i] >= '1' && b[i] <= '9':
		i = digits(b, i)
	default:
		return i, syntaxErrorAt(start, wantValue)
	}
	if i < len(b) && b[i] == '.' {
		j := digits(b, i+1)
		if j == i+1 {
			return i, nil // the number ends here, and nothing goes on with a point
		}
		i = j
	}
	if i < len(b) && (b[i] == 'e' || b[i] == 'E') {
		k := i + 1
		if k < len(b) && (b[k] == '+' || b[k] == '-') {
			k++
		}
		j := digits(b, k)
		if j == k {
			return i, nil // likewise
		}
		i = j
	}
	return i, nil
}

func digits(b []byte, i int) int {
	for i < len(b) && b[i]-'0' <= 9 {
		i++
	}
	return i
}

// str checks the string whose opening quote is at i.
func (s *scanner) str(i int) (int, error) {
	if n := strscan.Short(s.b[i+1:]); n >= 0 {
		return i + n + 2, nil
	}
	n, ascii := strscan.Text(s.b[i+1:])
	end := i + 1 + n
	if ascii && end < len(s.b) && s.b[end] == '"' {
		return end + 1, nil
	}
	return s.strEnd(i, end, ascii)
}

// strEnd judges the string that opens at i and whose text ends in front of end.
func (s *scanner) strEnd(i, end int, ascii bool) (int, error) {
	b := s.b
	if !ascii {
		if s.highEnd == 0 {
			s.high = i
		}
		s.highEnd = max(s.highEnd, end)
	}
	switch {
	case end == len(b):
		return end, syntaxErrorAt(i, openString)
	case b[end] == '"':
		return end + 1, nil
	case b[end] != '\\':
		return end, syntaxErrorAt(end, badControl)
	case end+1 == len(b):
		return end, syntaxErrorAt(i, openString)
	case b[end+1] == 'u':
		return end, syntaxErrorAt(end+1, badHexEscape)
	default:
		return end, syntaxErrorAt(end, badEscape)
	}
}

func (s *scanner) array(i, depth int) (int, error) {
	if depth >= maxDepth {
		return i, syntaxErrorAt(i, nestedTooDeep)
	}
	b := s.b
	i = s.space(i + 1)
	if i < len(b) && b[i] == ']' {
		s.several = false
		return i + 1, nil
	}
	several := false
	for {
		// Fast way through what most arrays of a request hold: plain token ids.
		if i < len(b) && b[i] >= '1' && b[i] <= '9' {
			j := digits(b, i+1)
			if j < len(b) && b[j] == ',' {
				i = j + 1
				if i < len(b) && b[i] == ' ' {
					i++
				}
				continue
			}
		}
		i = s.space(i)
		var err error
		if i, err = s.value(i, depth+1); err != nil {
			return i, err
		}
		i = s.space(i)
		if i >= len(b) {
			return i, syntaxErrorAt(i, wantComma)
		}
		switch b[i] {
		case ',':
			several = true
			i++
		case ']':
			s.several = several
			return i + 1, nil
		default:
			return i, syntaxErrorAt(i, wantComma)
		}
	}
}

func (s *scanner) object(i, depth int) (int, error) {
	return s.members(i, depth, nil)
}

// member is one key-value pair: b[key:keyEnd] with its quotes, b[val:end].
type member struct {
	key, keyEnd, val, end int
}

// members checks the object that begins at i and calls visit, where given,
// after each of its pairs.
func (s *scanner) members(i, depth int, visit func(member) error) (int, error) {
	if depth >= maxDepth {
		return i, syntaxErrorAt(i, nestedTooDeep)
	}
	b := s.b
	i = s.space(i + 1)
	if i < len(b) && b[i] == '}' {
		return i + 1, nil
	}
	for {
		if i >= len(b) || b[i] != '"' {
			return i, syntaxErrorAt(i, wantName)
		}
		m := member{key: i}
		var err error
		if m.keyEnd, err = s.str(i); err != nil {
			return i, err
		}
		i = s.space(m.keyEnd)
		if i >= len(b) || b[i] != ':' {
			return i, syntaxErrorAt(i, wantColon)
		}
		m.val = s.space(i + 1)
		if m.end, err = s.value(m.val, depth+1); err != nil {
			return m.end, err
		}
		if visit != nil {
			if err = visit(m); err != nil {
				return m.end, err
			}
		}
		i = s.space(m.end)
		if i >= len(b) {
			return i, syntaxErrorAt(i, wantComma)
		}
		switch b[i] {
		case ',':
			i = s.space(i + 1)
		case '}':
			return i + 1, nil
		default:
			return i, syntaxErrorAt(i, wantComma)
		}
	}
}

// isNull tells a value that is null.
func isNull(raw []byte) bool { return len(raw) == 4 && raw[0] == 'n' }
