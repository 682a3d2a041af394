package relay

import (
	"errors"
	"io"
	"time"

	"github.com/pdmesh/pdmesh/internal/forward/leg"
)

// maxHeldAnswer is how much of a non-streamed answer is read before the status
// goes out: up to here a broken answer can still be retried.
const maxHeldAnswer = 1 << 20

// firstBuffer is the size of the first buffer for an answer of unknown length.
const firstBuffer = 2 << 10

// whole passes a non-streamed answer on. Nothing is sent before it has been
// read to its end, or to maxHeldAnswer.
func (a *Answer) whole(s *Source) *leg.Failure {
	l, resp := s.Leg, s.Resp
	buf, n, err := s.hold(a.Idle)
	more := err == nil
	if more && resp.Length == int64(n) {
		more, err = false, io.EOF
		_ = readEnd(resp.Body, buf[n:n+1]) // every announced byte is here: the answer is complete
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return l.JudgeError(err)
	}
	if resp.Length > int64(n) && !more {
		return l.BadAnswer("it is shorter than announced")
	}
	if !more {
		if f := s.judgeEnd(a.Kind, buf[:n]); f != nil {
			return f
		}
	}
	if cause := l.Commit(); cause != nil && more {
		return l.JudgeCallOff(cause)
	}
	s.Commit() // before the write, which a slow client holds up
	head, length := buf[:n], resp.Length
	if !more {
		// An answer of more than maxHeldAnswer is not rewritten.
		for _, r := range s.Rewriters {
			head = r.Whole(head)
		}
		length = int64(len(head))
	}
	a.sendHeader(resp, length)
	if !a.write(head) {
		return nil
	}
	for more {
		l.Rearm(a.Idle)
		n, err = resp.Body.Read(buf)
		if n > 0 && !a.write(buf[:n]) {
			return nil
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				a.breakOff(false, err)
				return nil
			}
			more = false
		}
	}
	a.Outcome = OutcomeOK
	return nil
}

// hold reads an answer to its end, then err is io.EOF, or up to maxHeldAnswer. The answer
// is in buf[:n]; if its length was announced, buf has room for one more byte. idle bounds
// each read.
func (s *Source) hold(idle time.Duration) (buf []byte, n int, err error) {
	resp := s.Resp
	if resp.Length >= 0 {
		held := int(min(resp.Length, maxHeldAnswer))
		buf = make([]byte, held+1)
		n, err = s.readFull(idle, buf[:held])
		return buf, n, err
	}
	buf = make([]byte, firstBuffer)
	for {
		var m int
		m, err = s.readFull(idle, buf[n:])
		n += m
		if err != nil || n == maxHeldAnswer {
			return buf, n, err
		}
		bigger := make([]byte, min(4*len(buf), maxHeldAnswer))
		copy(bigger, buf)
		buf = bigger
	}
}

// readFull fills buf. io.EOF means that the body ended before buf was full, or just then.
func (s *Source) readFull(idle time.Duration, buf []byte) (int, error) {
	n := 0
	for n < len(buf) {
		s.Leg.Rearm(idle)
		m, err := s.Resp.Body.Read(buf[n:])
		n += m
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// readEnd reads the end of a body of known length, so that its connection goes back to
// the pool. one has room for a byte that should not come.
func readEnd(r io.Reader, one []byte) error {
	if _, err := r.Read(one); err != nil && err != io.EOF {
		return err
	}
	return nil
}
