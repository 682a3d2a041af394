package relay

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/internal/forward/scratch"
)

const (
	// freeAnswer is the part of an answer in bytes that may be held back without counting as memory
	// of bodies. An answer that needs no edit is held back up to this size, and relayed from then on.
	freeAnswer = 1 << 20
	// maxAnswer is the maximum size in bytes of an answer that is held back, even without a
	// bound for all bodies.
	maxAnswer = 1 << 30
	// firstBuffer is the size of the first buffer for an answer of unknown length.
	firstBuffer = 2 << 10
)

// whole relays a non-streamed answer. It sends nothing before it has read the whole answer,
// in order to judge and edit it; without rewriters, it reads at most freeAnswer before.
func (a *Answer) whole(s *Source) *leg.Failure {
	l, resp := s.Leg, s.Resp
	h := held{memory: a.Memory}
	defer h.release()
	err := h.read(s, a.Idle)
	buf, n := h.buf, h.n
	more := err == nil
	if more && resp.Length == int64(n) {
		more, err = false, io.EOF
		_ = readEnd(resp.Body, buf[n:n+1]) // every announced byte is here: the answer is complete
	}
	switch {
	case err == nil, errors.Is(err, io.EOF):
	case errors.Is(err, scratch.ErrNoMemory):
		return a.judgeMemory(l, &h, resp.Length)
	default:
		return l.JudgeError(err)
	}
	if resp.Length > int64(n) && !more {
		return l.JudgeBadAnswer("it is shorter than announced")
	}
	if !more {
		if f := s.judgeEnd(a.Kind, buf[:n]); f != nil {
			return f
		}
	}
	if cause := l.Commit(!more); cause != nil {
		return l.JudgeCallOff(cause)
	}
	if !a.beginsWhole() {
		return l.JudgeBadAnswer("it is not an event stream")
	}
	s.Commit() // before the write, which a slow client holds up
	body, length := buf[:n], resp.Length
	if !more {
		a.noteWhole(body)
		for _, r := range s.Rewriters {
			if r.Affects(body) {
				body = r.Rewrite(body) // a copy, if it changes: not counted as memory of bodies
			}
		}
		length = int64(len(body))
	}
	a.sendHeader(resp, length)
	if !a.write(body) {
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
				if f := l.JudgeError(err); f.Class != leg.ClientGone {
					a.breakOff(false, f.Class, err)
				} else {
					a.endCommitted(false)
				}
				return nil
			}
			more = false
		}
	}
	a.Outcome = OutcomeOK
	return nil
}

// judgeMemory judges an answer for which there is no memory. If it needs more than the
// whole bound, a later attempt would not help.
func (a *Answer) judgeMemory(l *leg.Leg, h *held, length int64) *leg.Failure {
	limit := int64(0)
	if a.Memory != nil {
		a.Memory.Refuse()
		_, limit, _ = a.Memory.Memory()
	}
	need := max(length, int64(h.n))
	switch {
	case limit > 0 && max(need, h.wanted) > limit:
		return l.JudgeTooLarge(fmt.Sprintf("holding it takes more than %d bytes (--max-bodies-memory)", limit))
	case need >= maxAnswer:
		return l.JudgeTooLarge("more than 1 GiB")
	}
	return l.JudgeNoMemory()
}

// held is an answer that is read before any of it is sent. The zero value is empty.
type held struct {
	memory   *scratch.Bodies // nil: no bound
	buf      []byte          // has capacity for one more byte if the length of the answer was announced
	n        int             // bytes of the answer in buf
	reserved int64           // bytes of buf that are counted in memory
	wanted   int64           // size of the larger buf that memory refused
}

// read reads the answer to its end (io.EOF), or as much as may be held back. idle bounds each read.
func (h *held) read(s *Source, idle time.Duration) error {
	resp, most := s.Resp, maxAnswer
	if len(s.Rewriters) == 0 {
		most = freeAnswer
	}
	if resp.Length >= 0 {
		size := min(resp.Length, int64(most))
		if resp.Length > maxAnswer && most == maxAnswer {
			return scratch.ErrNoMemory
		}
		if err := h.grow(int(size) + 1); err != nil {
			return err
		}
		return h.fill(s, idle, int(size))
	}
	for size := firstBuffer; ; {
		if err := h.grow(size); err != nil {
			return err
		}
		if err := h.fill(s, idle, size); err != nil || size == most && most == freeAnswer {
			return err
		}
		if size == most {
			return scratch.ErrNoMemory
		}
		if size = 4 * size; size > freeAnswer {
			size = max(size/2, freeAnswer)
		}
		size = min(size, most)
	}
}

// grow makes buf size bytes long.
func (h *held) grow(size int) error {
	if size > freeAnswer+1 && h.memory != nil {
		if err := h.memory.Reserve(int64(size) - h.reserved); err != nil {
			h.wanted = int64(size)
			return err
		}
		h.reserved = int64(size)
	}
	bigger := make([]byte, size)
	copy(bigger, h.buf[:h.n])
	h.buf = bigger
	return nil
}

// fill reads until buf has size bytes. io.EOF means that the answer ended before, or just then.
func (h *held) fill(s *Source, idle time.Duration, size int) error {
	for h.n < size {
		s.Leg.Rearm(idle)
		m, err := s.Resp.Body.Read(h.buf[h.n:size])
		h.n += m
		if err != nil {
			return err
		}
	}
	return nil
}

func (h *held) release() {
	if h.reserved > 0 {
		h.memory.Free(h.reserved)
	}
	h.buf, h.reserved = nil, 0
}

// readEnd reads the end of a body of known length, so that its connection goes back to the
// pool. one is a buffer of one byte, for a byte that should not arrive.
func readEnd(r io.Reader, one []byte) error {
	if _, err := r.Read(one); err != nil && err != io.EOF {
		return err
	}
	return nil
}
