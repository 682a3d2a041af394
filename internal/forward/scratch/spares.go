package scratch

import (
	"math/bits"
	"slices"
	"sync"
	"time"
)

const (
	// spareSteps are the sizes between one power of two and the next. Bodies are
	// seldom of one size, but often of nearly one.
	spareSteps = 32
	// minSpareStep is the size of Go's pages, of which such memory is made.
	minSpareStep = 8 << 10
	// maxSpareFit is how many times the size asked for a spare may have. With
	// prompts of all sizes between one and eight times the smallest, 8 at once,
	// one in twenty needs new memory, and one in four if a spare had to fit to a
	// quarter.
	maxSpareFit = 2
	// spareFor is how long memory is kept that nobody uses, or twice that.
	spareFor = 5 * time.Second
)

// spares keep the memory of large bodies for the next ones. A sync.Pool has the
// wrong measure for it: it keeps whatever was used since the last collection
// but one, for every size of its own, and loses everything when collections come
// close upon each other. Spares and what is in use are together never more than
// a quarter above what was in use at once lately, and a spare does for smaller
// bodies too.
type spares struct {
	mu     sync.Mutex // guards the rest
	free   []spare    // by size; of equal ones the last used is first
	kept   int64      // bytes in free
	inUse  int64      // bytes handed out
	peak   int64      // most bytes in use since the last turn of the timer
	before int64      // the same for the time before that
	used   uint64     // counts what was given back
	timer  *time.Timer
	timing bool // the timer is running
}

type spare struct {
	buf  *[]byte
	used uint64 // when it was given back, by spares.used
}

// spareSize is the size of a buffer made for n bytes: at most a thirty-second
// more, or the rest of a page.
func spareSize(n int) int {
	step := max(1<<bits.Len(uint(n-1))/2/spareSteps, minSpareStep)
	return (n + step - 1) / step * step
}

// take gives a buffer of at least n bytes, which are anything. It belongs to
// the caller until give or lose.
func (s *spares) take(n int) *[]byte {
	size := spareSize(n)
	if buf := s.reuse(n, size); buf != nil {
		return buf
	}
	buf := make([]byte, size)
	return &buf
}

// reuse books a buffer for n bytes: a spare, or nil for one that the caller makes
// of the given size.
func (s *spares) reuse(n, size int) *[]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := s.find(n); i < len(s.free) && len(*s.free[i].buf) <= maxSpareFit*size {
		buf := s.remove(i)
		s.count(len(*buf))
		return buf
	}
	s.count(size)
	s.shed()
	return nil
}

// give takes back a buffer that nothing reads or writes any more.
func (s *spares) give(buf *[]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used++
	s.inUse -= int64(len(*buf))
	s.kept += int64(len(*buf))
	s.free = slices.Insert(s.free, s.find(len(*buf)), spare{buf, s.used})
	s.shed()
	s.time()
}

// lose forgets a buffer that somebody may go on using.
func (s *spares) lose(buf *[]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inUse -= int64(len(*buf))
}

// find gives the place of the first buffer of at least n bytes. s.mu is held,
// as in all that follow.
func (s *spares) find(n int) int {
	i, _ := slices.BinarySearchFunc(s.free, n, func(f spare, n int) int { return len(*f.buf) - n })
	return i
}

func (s *spares) remove(i int) *[]byte {
	buf := s.free[i].buf
	s.kept -= int64(len(*buf))
	s.free = slices.Delete(s.free, i, i+1)
	return buf
}

func (s *spares) count(n int) {
	s.inUse += int64(n)
	s.peak = max(s.peak, s.inUse)
}

// limit is how much there may be, with what is in use.
func (s *spares) limit() int64 {
	peak := max(s.peak, s.before)
	return peak + peak/4
}

// shed drops what was unused for longest while there is too much.
func (s *spares) shed() {
	for len(s.free) > 0 && s.inUse+s.kept > s.limit() {
		oldest := 0
		for i := range s.free {
			if s.free[i].used < s.free[oldest].used {
				oldest = i
			}
		}
		s.remove(oldest)
	}
}

// time makes sure that turn comes while there is something to drop.
func (s *spares) time() {
	switch {
	case s.timing || len(s.free) == 0:
	case s.timer == nil:
		s.timer, s.timing = time.AfterFunc(spareFor, s.turn), true
	default:
		s.timer.Reset(spareFor)
		s.timing = true
	}
}

func (s *spares) turn() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before, s.peak = s.peak, s.inUse
	s.shed()
	s.timing = false
	s.time()
}
