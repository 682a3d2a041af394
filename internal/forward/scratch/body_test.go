package scratch

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func TestBodyClasses(t *testing.T) {
	t.Parallel()
	last := -1
	for n := int64(minPooledBody); n <= largeBody; n += 1 + n/97 {
		class, size, ok := bodyClass(n)
		if !ok || int64(size) < n || int64(size) > n+n/bodySteps+1 {
			t.Fatalf("%d bytes: class %d of %d bytes, %v", n, class, size, ok)
		}
		if class < last || class >= len(bodyPools) {
			t.Fatalf("%d bytes: class %d after %d of %d", n, class, last, len(bodyPools))
		}
		last = class
		// A buffer goes back to where it came from.
		if again, same, ok := bodyClass(int64(size)); !ok || again != class || same != size {
			t.Fatalf("a buffer of %d bytes from class %d goes back to %d (%d bytes)", size, class, again, same)
		}
	}
	for _, n := range []int64{-1, 0, 1, minPooledBody - 1, largeBody + 1, 1 << 40} {
		if _, _, ok := bodyClass(n); ok {
			t.Errorf("%d bytes are pooled", n)
		}
	}
	if _, _, ok := bodyClass(largeBody); !ok {
		t.Error("the largest of these sizes is not pooled")
	}
}

// stopTimer ends the timer of the spares, which would outlive the test.
func stopTimer(b *Bodies) {
	b.spares.mu.Lock()
	defer b.spares.mu.Unlock()
	if b.spares.timer != nil {
		b.spares.timer.Stop()
	}
}

// end lets go of a body and tells what is still in use.
func end(t *testing.T, b *Bodies, body *Body) {
	t.Helper()
	body.Release(true)
	if held, _, _ := b.Memory(); b.spares.inUse != 0 || held != 0 {
		t.Errorf("%d bytes are in use in the end, %d counted", b.spares.inUse, held)
	}
	stopTimer(b)
}

// Who announces a large body holds memory for what came of it, not for what is
// to come.
func TestMemoryFollowsWhatCame(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ announced, came, most int }{
		{firstRoom, 1, firstRoom},
		{firstRoom + 1, 0, firstRoom},
		{8 << 20, 1, firstRoom},
		{8 << 20, firstRoom - 1, firstRoom},
		{8 << 20, 32 << 10, 4 * firstRoom},
		{8 << 20, 100 << 10, 16 * firstRoom},
		{1 << 40, 100 << 10, 16 * firstRoom},
	} {
		t.Run(fmt.Sprintf("%d of %d bytes", c.came, c.announced), func(t *testing.T) {
			t.Parallel()
			errCut := errors.New("cut")
			var b Bodies
			body, err := b.Read(io.MultiReader(strings.NewReader(strings.Repeat("x", c.came)),
				iotest.ErrReader(errCut)), int64(c.announced))
			if !errors.Is(err, errCut) || len(body.Bytes()) != c.came {
				t.Fatalf("%d bytes, %v", len(body.Bytes()), err)
			}
			held, _, _ := b.Memory()
			if len(*body.pooled) > c.most || b.spares.peak > int64(c.most+c.most/trustByte) || held != int64(len(*body.pooled)) {
				t.Errorf("%d bytes held, %d counted, %d at most, want no more than %d", len(*body.pooled), held, b.spares.peak, c.most)
			}
			end(t, &b, body)
		})
	}
}

// A body takes its own size, and the step before that while it is moved: not twice its
// size because it is a little longer than what a step is good for.
func TestMemoryOfOneBody(t *testing.T) {
	t.Parallel()
	for _, n := range []int{64 * firstRoom, 64*firstRoom + 1, 64*firstRoom + 500, 96 * firstRoom} {
		var b Bodies
		body, err := b.Read(bytes.NewReader(make([]byte, n)), int64(n))
		if err != nil {
			t.Fatal(err)
		}
		if most := int64(spareSize(n) + 16*firstRoom); b.spares.peak > most {
			t.Errorf("a body of %d bytes took %d at most, want %d", n, b.spares.peak, most)
		}
		end(t, &b, body)
	}
}

// pattern gives n bytes none of which can be taken for its neighbour for long.
func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i * 7 >> 3)
	}
	return b
}

// However a body of known length comes, and in however many steps its memory
// is taken, it is the body that was sent, or told to be cut.
func TestReadAnnounced(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, minPooledBody, largeBody, largeBody + 1, firstRoom, firstRoom + 1,
		trustByte*firstRoom - 1, trustByte * firstRoom, trustByte*firstRoom + 1, 2*trustByte*firstRoom - 1, 2*trustByte*firstRoom + 1, maxPooledBody + 1, 40 << 20} {
		sent := pattern(n)
		for name, r := range map[string]io.Reader{
			"whole":         bytes.NewReader(sent),
			"end with data": iotest.DataErrReader(bytes.NewReader(sent)),
			"halves":        iotest.HalfReader(bytes.NewReader(sent)),
		} {
			var b Bodies
			body, err := b.Read(r, int64(n))
			if err != nil || !bytes.Equal(body.Bytes(), sent) {
				t.Errorf("%d bytes, %s: %d bytes came, %v", n, name, len(body.Bytes()), err)
			}
			end(t, &b, body)
		}
		for _, cut := range []int{0, min(firstRoom, n-1), n - 1} {
			var b Bodies
			want := io.ErrUnexpectedEOF
			if cut == 0 {
				want = io.EOF
			}
			body, err := b.Read(bytes.NewReader(sent[:cut]), int64(n))
			if !errors.Is(err, want) || len(body.Bytes()) != cut {
				t.Errorf("%d of %d bytes: %d came, %v", cut, n, len(body.Bytes()), err)
			}
			end(t, &b, body)
		}
		var b Bodies
		body, err := b.Read(io.MultiReader(bytes.NewReader(sent), strings.NewReader("y")), int64(n))
		if !errors.Is(err, errSurplus) {
			t.Errorf("%d bytes and one more: %v", n, err)
		}
		end(t, &b, body)
	}
}

// A body that an upstream client may still be sending is never used again.
func TestBodyThatIsStillReadIsNotUsedAgain(t *testing.T) {
	t.Parallel()
	for _, again := range []bool{false, true} {
		var b Bodies
		body, err := b.Read(strings.NewReader(strings.Repeat("x", 1<<20)), 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		first := &body.Bytes()[0]
		body.Release(again)
		next, _ := b.buffer(1 << 20)
		if same := &next[0] == first; same != again {
			t.Errorf("again %v: the same memory: %v", again, same)
		}
		if b.spares.inUse != int64(len(next)) {
			t.Errorf("again %v: %d bytes in use, want %d", again, b.spares.inUse, len(next))
		}
		stopTimer(&b)
	}
}

func TestReadUnannounced(t *testing.T) {
	t.Parallel()
	errCut := errors.New("cut")
	for _, n := range []int{0, 1, firstPiece - 1, firstPiece, firstPiece + 1, firstPiece + piece,
		firstPiece + piece + 1, 1 << 20, maxPooledBody + 1} {
		want := pattern(n)
		for name, r := range map[string]io.Reader{
			"whole":         bytes.NewReader(want),
			"halves":        iotest.HalfReader(bytes.NewReader(want)),
			"end with data": iotest.DataErrReader(bytes.NewReader(want)),
		} {
			var b Bodies
			body, err := b.Read(r, -1)
			if err != nil || !bytes.Equal(body.Bytes(), want) {
				t.Errorf("%d bytes, %s: %d bytes came, %v", n, name, len(body.Bytes()), err)
			}
			end(t, &b, body)
		}
		var b Bodies
		body, err := b.Read(io.MultiReader(bytes.NewReader(want), iotest.ErrReader(errCut)), -1)
		if !errors.Is(err, errCut) {
			t.Errorf("%d bytes and an error: %v", n, err)
		}
		end(t, &b, body)
	}
}

// Only io.EOF itself is the end: an error that wraps it is a body cut short,
// however much came before.
func TestCutBodyIsNotWhole(t *testing.T) {
	t.Parallel()
	cut := fmt.Errorf("cut: %w", io.EOF)
	for _, n := range []int{0, 10, firstPiece, 100 << 10, 1 << 20} {
		var b Bodies
		body, err := b.Read(io.MultiReader(strings.NewReader(strings.Repeat("x", n)), iotest.ErrReader(cut)), -1)
		if err == nil {
			t.Errorf("%d bytes and a cut are taken for a whole body", n)
		}
		end(t, &b, body)
	}
}
