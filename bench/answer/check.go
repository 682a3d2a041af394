package answer

import (
	"bytes"
	"errors"
	"fmt"
)

// ErrWrong is wrapped by every complaint about bytes that are not those of the
// one right answer, or that are missing although the answer ended cleanly.
var ErrWrong = errors.New("wrong answer")

// ErrSaid is wrapped when an answer says itself, by an error event, that it is
// broken.
var ErrSaid = errors.New("an error event")

// StreamCheck compares an event stream with the right one while it arrives, in
// pieces of any size.
type StreamCheck struct {
	want    *Stream
	event   []byte // the current one
	i, at   int
	onToken func()
}

// NewStreamCheck checks against want, which then belongs to the check. onToken
// is called at the end of every event with a token; it may be nil.
func NewStreamCheck(want *Stream, onToken func()) *StreamCheck {
	return &StreamCheck{want: want, onToken: onToken}
}

// Begin expects another answer.
func (c *StreamCheck) Begin(tag uint64) {
	c.want.SetTag(tag)
	c.i, c.at = 0, 0
	c.event = c.want.Event(0)
}

// Write takes the next piece. It never keeps it.
func (c *StreamCheck) Write(p []byte) error {
	for len(p) > 0 {
		if c.i == c.want.Events() {
			return fmt.Errorf("%w: %.80q behind the end", ErrWrong, p)
		}
		n := min(len(p), len(c.event)-c.at)
		if !bytes.Equal(p[:n], c.event[c.at:c.at+n]) {
			if c.at == 0 && bytes.HasPrefix(p, []byte(`data: {"error"`)) {
				return fmt.Errorf("%w, in event %d of %d: %.200q", ErrSaid, c.i, c.want.Events(), p)
			}
			return fmt.Errorf("%w: in event %d of %d, byte %d, came %.160q instead of %.160q", ErrWrong, c.i, c.want.Events(), c.at, p[:n], c.event[c.at:c.at+n])
		}
		c.at += n
		p = p[n:]
		if c.at < len(c.event) {
			return nil
		}
		if c.onToken != nil && c.want.IsToken(c.i) {
			c.onToken()
		}
		c.i++
		c.at = 0
		if c.i < c.want.Events() {
			c.event = c.want.Event(c.i)
		}
	}
	return nil
}

// End says whether everything came.
func (c *StreamCheck) End() error {
	if c.i < c.want.Events() {
		return fmt.Errorf("%w: it ended cleanly in event %d of %d", ErrWrong, c.i, c.want.Events())
	}
	return nil
}

// WholeCheck does the same for an answer in one piece.
type WholeCheck struct {
	want *Whole
	at   int
}

// NewWholeCheck checks against want, which then belongs to the check.
func NewWholeCheck(want *Whole) *WholeCheck { return &WholeCheck{want: want} }

// Begin expects another answer.
func (c *WholeCheck) Begin(tag uint64) {
	c.want.SetTag(tag)
	c.at = 0
}

// Write takes the next piece.
func (c *WholeCheck) Write(p []byte) error {
	rest := c.want.Body[c.at:]
	n := min(len(p), len(rest))
	if len(p) > len(rest) || !bytes.Equal(p, rest[:n]) {
		return fmt.Errorf("%w: at byte %d of %d came %.200q instead of %.200q", ErrWrong, c.at, len(c.want.Body), p, rest[:n])
	}
	c.at += n
	return nil
}

// KV is the hand-over that the right answer brings.
func (c *WholeCheck) KV() []byte { return c.want.KV() }

// End says whether everything came.
func (c *WholeCheck) End() error {
	if c.at < len(c.want.Body) {
		return fmt.Errorf("%w: it ended cleanly after %d of %d bytes", ErrWrong, c.at, len(c.want.Body))
	}
	return nil
}
