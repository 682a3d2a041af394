package upstream

import (
	"net/http"
	"sync/atomic"
)

// maxKnown bounds the head that a connection remembers, in bytes.
const maxKnown = 1 << 10

// Memo is a place for what the caller makes of a Header. Others that got the same
// Header may use it at the same time.
type Memo struct{ made atomic.Pointer[any] }

// Load gives what was stored, nil if nothing was.
func (m *Memo) Load() any {
	if v := m.made.Load(); v != nil {
		return *v
	}
	return nil
}

// Store keeps something, instead of what was there.
func (m *Memo) Store(v any) { m.made.Store(&v) }

// known is a head that came twice in a row on a connection, but for the length of
// the body: engines say the same again and again, with another date once a second.
// Nothing of it changes any more, as answers may outlive their use of the connection.
type known struct {
	said
	head head // what was read in it, but for the length; without its header if nobody asked for that
	memo Memo
}

// said is a head as it came.
type said struct {
	text     []byte // empty for none
	from, to int    // the digits of Content-Length in it, 0 and 0 if there are none
}

func (s *said) forget() { s.text, s.from, s.to = s.text[:0], 0, 0 }

// same reads a head that is this one but for the length of the body, -1 if it has
// none. n is the head's length in data, 0 if it is another head.
func (s *said) same(data []byte) (n int, length int64) {
	if len(s.text) == 0 {
		return 0, 0
	}
	before, behind := s.text[:s.from], s.text[s.to:]
	if len(data) < len(before) || string(data[:len(before)]) != string(before) {
		return 0, 0
	}
	rest := data[len(before):]
	length = -1
	if s.to > 0 {
		digits := 0
		for digits < len(rest) && '0' <= rest[digits] && rest[digits] <= '9' {
			digits++
		}
		var err error
		if length, err = parseLength(rest[:digits]); err != nil {
			return 0, 0
		}
		rest = rest[digits:]
	}
	if len(rest) < len(behind) || string(rest[:len(behind)]) != string(behind) {
		return 0, 0
	}
	return len(data) - len(rest) + len(behind), length
}

// readKnown reads a head that is known into h, out of the buffered data.
func (c *conn) readKnown(data []byte, h *head) bool {
	k := c.known
	if k == nil || k.head.header == nil && !h.bare {
		return false
	}
	n, length := k.same(data)
	if n == 0 {
		return false
	}
	h.take(k)
	h.length = length
	c.r += n
	return true
}

// take makes it what is known.
func (h *head) take(k *known) {
	bare, space := h.bare, h.space
	*h = k.head
	h.bare, h.space, h.memo = bare, space, &k.memo
}

// readNew parses a head that is not known, and gets to know it if it is the second
// like this.
func (c *conn) readNew(text []byte, h *head) error {
	n, _ := c.last.same(text)
	again := n == len(text)
	space := h.space
	switch {
	case again:
		h.space = nil // the header is to stay
	case len(text) <= maxKnown:
		c.last.text = append(c.last.text[:0], text...) // as it came: parse spells names anew
	default:
		c.last.forget()
	}
	err := h.parse(text)
	h.space = space
	switch {
	case err != nil || h.status != http.StatusOK:
		c.last.forget()
	case again:
		k := &known{said: said{append([]byte(nil), c.last.text...), c.last.from, c.last.to}, head: *h}
		k.head.space = nil
		c.known = k
		h.memo = &k.memo
	default:
		c.last.from, c.last.to = h.lengthFrom, h.lengthTo
	}
	return err
}
