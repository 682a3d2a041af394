package scratch

import (
	"bytes"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestSpareSizes(t *testing.T) {
	t.Parallel()
	for n := largeBody + 1; n <= maxPooledBody; n += 1 + n/97 {
		size := spareSize(n)
		if size < n || size >= n+max(n/spareSteps+1, minSpareStep) {
			t.Fatalf("%d bytes in %d", n, size)
		}
		if again := spareSize(size); again != size {
			t.Fatalf("a buffer of %d bytes would be made as one of %d", size, again)
		}
	}
}

// What is handed out belongs to one alone, whatever comes and goes beside it:
// the race detector sees it if not, and so do the bytes.
func TestSparesHandOutNothingTwice(t *testing.T) {
	t.Parallel()
	var s spares
	var users sync.WaitGroup
	for u := range 8 {
		users.Go(func() {
			rnd := rand.New(rand.NewPCG(3, uint64(u)))
			for i := range 200 {
				n := largeBody + 1 + rnd.IntN(4*largeBody)
				buf := s.take(n)
				if len(*buf) < n {
					t.Errorf("%d bytes instead of %d", len(*buf), n)
				}
				mark := byte(u<<5 | i&31)
				for j := range *buf {
					(*buf)[j] = mark
				}
				runtime.Gosched()
				if c := bytes.Count(*buf, []byte{mark}); c != len(*buf) {
					t.Errorf("%d of %d bytes are someone else's", len(*buf)-c, len(*buf))
				}
				switch rnd.IntN(20) {
				case 0:
					s.lose(buf)
				case 1:
					s.give(buf)
					s.turn()
				default:
					s.give(buf)
				}
			}
		})
	}
	users.Wait()
	if s.inUse != 0 {
		t.Errorf("%d bytes in use by nobody", s.inUse)
	}
}

// ledger follows spares and complains when their books are wrong. Its timer
// stands still.
type ledger struct {
	spares
	t *testing.T
}

func newLedger(t *testing.T) *ledger {
	t.Helper()
	return &ledger{t: t, spares: spares{timing: true}}
}

func (l *ledger) turn() {
	l.spares.turn()
	if l.timer != nil && l.timing {
		l.timer.Stop()
	}
	l.timing = true
}

func (l *ledger) check() {
	l.t.Helper()
	var kept int64
	for i, f := range l.free {
		kept += int64(len(*f.buf))
		if i > 0 && len(*l.free[i-1].buf) > len(*f.buf) {
			l.t.Fatal("not by size")
		}
	}
	if kept != l.kept {
		l.t.Fatalf("%d bytes kept, booked as %d", kept, l.kept)
	}
	if peak := max(l.peak, l.before); l.inUse+kept > peak+peak/4 {
		l.t.Fatalf("%d bytes in use and %d kept, with %d in use at most", l.inUse, kept, peak)
	}
}

func TestSparesAreBounded(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	rnd := rand.New(rand.NewPCG(1, 1))
	var held []*[]byte
	made := map[*[]byte]bool{}
	const rounds = 4000
	for range rounds {
		if len(held) == 8 {
			i := rnd.IntN(len(held))
			l.give(held[i])
			held = append(held[:i], held[i+1:]...)
			l.check()
		}
		n := 256<<10 + rnd.IntN(768<<10)
		buf := l.take(n)
		if len(*buf) > maxSpareFit*spareSize(n) {
			t.Fatalf("%d bytes for %d", len(*buf), n)
		}
		made[buf] = true
		held = append(held, buf)
		l.check()
	}
	if len(made) > rounds/10 {
		t.Errorf("%d buffers were made for %d bodies", len(made), rounds)
	}
	for _, buf := range held {
		l.give(buf)
		l.check()
	}
	l.turn()
	l.check()
	l.turn()
	if l.check(); l.kept != 0 || len(l.free) != 0 {
		t.Errorf("%d bytes are kept that nobody has used for long", l.kept)
	}
}

// The next bodies of the same size take the very same memory, up to all at once.
func TestSparesAreUsedAgain(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	var first, second []*[]byte
	for range 8 {
		first = append(first, l.take(1<<20+100))
	}
	for _, buf := range first {
		l.give(buf)
	}
	l.turn() // one turn is no reason to drop what was used since the last
	for range 8 {
		second = append(second, l.take(1<<20+100))
	}
	l.check()
	if len(l.free) != 0 {
		t.Errorf("%d were made anew", len(l.free))
	}
	for _, buf := range second {
		if !slices.Contains(first, buf) {
			t.Errorf("%p is none of %v", buf, first)
		}
	}
}

// The timer drops what nobody uses, without anybody coming by, and rests then.
func TestSparesAreDroppedInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var s spares
		state := func() (kept int64, timing bool) {
			synctest.Wait()
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.kept, s.timing
		}
		s.give(s.take(1 << 20))
		time.Sleep(spareFor / 2)
		if kept, timing := state(); kept == 0 || !timing {
			t.Errorf("%d bytes are kept at first, the timer is running: %v", kept, timing)
		}
		time.Sleep(2 * spareFor)
		if kept, timing := state(); kept != 0 || timing {
			t.Errorf("%d bytes are kept for long, the timer is running: %v", kept, timing)
		}
	})
}
