package loadgen

import (
	"errors"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

var errJSON = errors.New("not valid JSON")

// cursor walks over one JSON value without building it. It checks the
// structure it walks over; numbers and literals are checked only where their
// value is wanted.
type cursor struct {
	b   []byte
	i   int
	key []byte // the key last read; its memory is used again for the next one
}

func (c *cursor) space() {
	for c.i < len(c.b) {
		switch c.b[c.i] {
		case ' ', '\t', '\n', '\r':
			c.i++
		default:
			return
		}
	}
}

// peek returns the next byte that is no space, 0 at the end.
func (c *cursor) peek() byte {
	c.space()
	if c.i < len(c.b) {
		return c.b[c.i]
	}
	return 0
}

func (c *cursor) take(want byte) bool {
	if c.peek() != want {
		return false
	}
	c.i++
	return true
}

// object calls member for every key; member must consume the value, and must
// not look at the key after that.
func (c *cursor) object(member func(key []byte) error) error {
	if !c.take('{') {
		return errJSON
	}
	if c.take('}') {
		return nil
	}
	for {
		var err error
		if c.key, err = c.text(c.key[:0]); err != nil {
			return err
		}
		if !c.take(':') {
			return errJSON
		}
		if err := member(c.key); err != nil {
			return err
		}
		if c.take('}') {
			return nil
		}
		if !c.take(',') {
			return errJSON
		}
	}
}

// array calls element for every element; element must consume it.
func (c *cursor) array(element func(i int) error) error {
	if !c.take('[') {
		return errJSON
	}
	if c.take(']') {
		return nil
	}
	for i := 0; ; i++ {
		if err := element(i); err != nil {
			return err
		}
		if c.take(']') {
			return nil
		}
		if !c.take(',') {
			return errJSON
		}
	}
}

// text appends the decoded string to dst. Half of a surrogate pair becomes
// U+FFFD, as encoding/json has it.
func (c *cursor) text(dst []byte) ([]byte, error) {
	if !c.take('"') {
		return dst, errJSON
	}
	start := c.i
	for c.i < len(c.b) {
		switch ch := c.b[c.i]; {
		case ch == '"':
			dst = append(dst, c.b[start:c.i]...)
			c.i++
			return dst, nil
		case ch < ' ':
			return dst, errJSON
		case ch == '\\':
			dst = append(dst, c.b[start:c.i]...)
			var err error
			if dst, err = c.escape(dst); err != nil {
				return dst, err
			}
			start = c.i
		default:
			c.i++
		}
	}
	return dst, errJSON
}

// escape appends what the escape at the cursor represents.
func (c *cursor) escape(dst []byte) ([]byte, error) {
	if c.i+1 >= len(c.b) {
		return dst, errJSON
	}
	ch := c.b[c.i+1]
	c.i += 2
	switch ch {
	case '"', '\\', '/':
		return append(dst, ch), nil
	case 'b':
		return append(dst, '\b'), nil
	case 'f':
		return append(dst, '\f'), nil
	case 'n':
		return append(dst, '\n'), nil
	case 'r':
		return append(dst, '\r'), nil
	case 't':
		return append(dst, '\t'), nil
	case 'u':
		r, ok := c.hex()
		if !ok {
			return dst, errJSON
		}
		if utf16.IsSurrogate(r) {
			before := c.i
			var low rune
			if c.i+1 < len(c.b) && c.b[c.i] == '\\' && c.b[c.i+1] == 'u' {
				c.i += 2
				if low, ok = c.hex(); !ok {
					return dst, errJSON
				}
			}
			if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
				c.i = before
			}
		}
		return utf8.AppendRune(dst, r), nil
	}
	return dst, errJSON
}

func (c *cursor) hex() (rune, bool) {
	if c.i+4 > len(c.b) {
		return 0, false
	}
	var r rune
	for _, ch := range c.b[c.i : c.i+4] {
		switch {
		case ch >= '0' && ch <= '9':
			ch -= '0'
		case ch >= 'a' && ch <= 'f':
			ch -= 'a' - 10
		case ch >= 'A' && ch <= 'F':
			ch -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(ch)
	}
	c.i += 4
	return r, true
}

// null consumes a null if one is there.
func (c *cursor) null() bool {
	if c.peek() == 'n' && len(c.b)-c.i >= 4 && string(c.b[c.i:c.i+4]) == "null" {
		c.i += 4
		return true
	}
	return false
}

// integer reads a whole number.
func (c *cursor) integer() (int, error) {
	start := c.skipScalar()
	n, err := strconv.Atoi(string(c.b[start:c.i])) // the conversion does not escape, so it does not allocate
	if err != nil {
		return 0, errJSON
	}
	return n, nil
}

func (c *cursor) skipScalar() (start int) {
	c.space()
	start = c.i
	for c.i < len(c.b) {
		switch c.b[c.i] {
		case ',', '}', ']', ' ', '\t', '\n', '\r':
			return start
		}
		c.i++
	}
	return start
}

// skip passes over any value.
func (c *cursor) skip() error {
	depth := 0
	for {
		switch c.peek() {
		case 0, ':':
			return errJSON
		case '"':
			if err := c.skipText(); err != nil {
				return err
			}
		case '{', '[':
			depth++
			c.i++
			continue
		case '}', ']':
			if depth--; depth < 0 {
				return errJSON
			}
			c.i++
		default:
			if c.skipScalar() == c.i {
				return errJSON
			}
		}
		if depth == 0 {
			return nil
		}
		switch c.peek() {
		case ',', ':':
			c.i++
		}
	}
}

func (c *cursor) skipText() error {
	for c.i++; c.i < len(c.b); c.i++ {
		switch c.b[c.i] {
		case '"':
			c.i++
			return nil
		case '\\':
			c.i++
		}
	}
	return errJSON
}
