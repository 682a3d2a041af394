package jsonscan

import "fmt"

// MaxDepth bounds nesting; vLLM's own parser fails near 1000 levels.
const MaxDepth = 512

// Error is the error of a text that is not JSON.
type Error struct {
	At   int // position in bytes
	What string
}

func (e *Error) Error() string {
	return fmt.Sprintf("invalid JSON: %s at byte %d", e.What, e.At)
}

// The values of Error.What.
const (
	wantValue     = "expected a value"
	wantName      = "expected a name in double quotes"
	wantColon     = "expected a colon"
	wantComma     = "expected a comma"
	ExtraData     = "extra data"
	openString    = "unterminated string"
	badControl    = "control character in a string"
	badEscape     = "invalid escape"
	badHexEscape  = `invalid \u escape`
	NestedTooDeep = "nested too deeply" // Python accepts more levels
)

// ErrorAt returns an *Error at a position.
func ErrorAt(pos int, what string) error { return &Error{pos, what} }

// Scanner validates JSON (RFC 8259) without building values. Its methods take the position
// where a token begins and return the position after it.
type Scanner struct {
	Text []byte
	// Text[High:HighEnd] has all bytes above 0x7f that str has read. They are valid UTF-8 if
	// this range is, since it begins and ends at quotes.
	High, HighEnd int
	// Several reports whether the array that ended last has more than one element. It is not
	// reliable if the first element is a number.
	Several bool
	Arrays  int // number of arrays that were begun
}

// Space returns the position after the white space at i.
func (s *Scanner) Space(i int) int {
	for i < len(s.Text) {
		switch s.Text[i] {
		case ' ', '\n', '\r', '\t':
			i++
		default:
			return i
		}
	}
	return i
}

// Value checks the value that begins at i.
func (s *Scanner) Value(i, depth int) (int, error) {
	if i >= len(s.Text) {
		return i, ErrorAt(i, wantValue)
	}
	switch c := s.Text[i]; {
	case c == '"':
		return s.str(i)
	case c == '{':
		return s.Members(i, depth, nil)
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
		return i, ErrorAt(i, wantValue)
	}
}

func (s *Scanner) literal(i int, word string) (int, error) {
	if len(s.Text)-i < len(word) || string(s.Text[i:i+len(word)]) != word {
		return i, ErrorAt(i, wantValue)
	}
	return i + len(word), nil
}

func (s *Scanner) number(i int) (int, error) {
	b, start := s.Text, i
	if b[i] == '-' {
		i++
	}
	switch {
	case i < len(b) && b[i] == '0':
		i++
	case i < len(b) && b[i] >= '1' && b[i] <= '9':
		i = Digits(b, i)
	default:
		return i, ErrorAt(start, wantValue)
	}
	if i < len(b) && b[i] == '.' {
		j := Digits(b, i+1)
		if j == i+1 {
			return i, nil // the number ends here, and no point may follow it
		}
		i = j
	}
	if i < len(b) && (b[i] == 'e' || b[i] == 'E') {
		k := i + 1
		if k < len(b) && (b[k] == '+' || b[k] == '-') {
			k++
		}
		j := Digits(b, k)
		if j == k {
			return i, nil // likewise
		}
		i = j
	}
	return i, nil
}

// Digits returns the position after the decimal digits at i.
func Digits(b []byte, i int) int {
	for i < len(b) && b[i]-'0' <= 9 {
		i++
	}
	return i
}

// str checks the string whose opening quote is at i.
func (s *Scanner) str(i int) (int, error) {
	if n := shortText(s.Text[i+1:]); n >= 0 {
		return i + n + 2, nil
	}
	n, ascii := text(s.Text[i+1:])
	end := i + 1 + n
	if ascii && end < len(s.Text) && s.Text[end] == '"' {
		return end + 1, nil
	}
	return s.strEnd(i, end, ascii)
}

// strEnd checks the end of the string that opens at i and whose text ends before end.
func (s *Scanner) strEnd(i, end int, ascii bool) (int, error) {
	b := s.Text
	if !ascii {
		if s.HighEnd == 0 {
			s.High = i
		}
		s.HighEnd = max(s.HighEnd, end)
	}
	switch {
	case end == len(b):
		return end, ErrorAt(i, openString)
	case b[end] == '"':
		return end + 1, nil
	case b[end] != '\\':
		return end, ErrorAt(end, badControl)
	case end+1 == len(b):
		return end, ErrorAt(i, openString)
	case b[end+1] == 'u':
		return end, ErrorAt(end+1, badHexEscape)
	default:
		return end, ErrorAt(end, badEscape)
	}
}

func (s *Scanner) array(i, depth int) (int, error) {
	if depth >= MaxDepth {
		return i, ErrorAt(i, NestedTooDeep)
	}
	s.Arrays++
	b := s.Text
	i = s.Space(i + 1)
	if i < len(b) && b[i] == ']' {
		s.Several = false
		return i + 1, nil
	}
	several := false
	for {
		// Fast path for the usual elements of a request's arrays: plain token ids.
		if i < len(b) && b[i] >= '1' && b[i] <= '9' {
			j := Digits(b, i+1)
			if j < len(b) && b[j] == ',' {
				i = j + 1
				if i < len(b) && b[i] == ' ' {
					i++
				}
				continue
			}
		}
		i = s.Space(i)
		var err error
		if i, err = s.Value(i, depth+1); err != nil {
			return i, err
		}
		i = s.Space(i)
		if i >= len(b) {
			return i, ErrorAt(i, wantComma)
		}
		switch b[i] {
		case ',':
			several = true
			i++
		case ']':
			s.Several = several
			return i + 1, nil
		default:
			return i, ErrorAt(i, wantComma)
		}
	}
}

// Member is one key-value pair: Text[Key:KeyEnd] with its quotes, Text[Value:End].
type Member struct {
	Key, KeyEnd, Value, End int
}

// Members checks the object that begins at i and calls visit, unless it is nil, after each of its pairs.
func (s *Scanner) Members(i, depth int, visit func(Member) error) (int, error) {
	if depth >= MaxDepth {
		return i, ErrorAt(i, NestedTooDeep)
	}
	b := s.Text
	i = s.Space(i + 1)
	if i < len(b) && b[i] == '}' {
		return i + 1, nil
	}
	for {
		if i >= len(b) || b[i] != '"' {
			return i, ErrorAt(i, wantName)
		}
		m := Member{Key: i}
		var err error
		if m.KeyEnd, err = s.str(i); err != nil {
			return i, err
		}
		i = s.Space(m.KeyEnd)
		if i >= len(b) || b[i] != ':' {
			return i, ErrorAt(i, wantColon)
		}
		m.Value = s.Space(i + 1)
		if m.End, err = s.Value(m.Value, depth+1); err != nil {
			return m.End, err
		}
		if visit != nil {
			if err = visit(m); err != nil {
				return m.End, err
			}
		}
		i = s.Space(m.End)
		if i >= len(b) {
			return i, ErrorAt(i, wantComma)
		}
		switch b[i] {
		case ',':
			i = s.Space(i + 1)
		case '}':
			return i + 1, nil
		default:
			return i, ErrorAt(i, wantComma)
		}
	}
}

// IsNull reports whether a value is null.
func IsNull(raw []byte) bool { return len(raw) == 4 && raw[0] == 'n' }
