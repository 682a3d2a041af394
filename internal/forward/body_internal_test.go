package forward

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
			x := &exchange{h: &Handler{}}
			got, err := x.readAll(io.MultiReader(strings.NewReader(strings.Repeat("x", c.came)),
				iotest.ErrReader(errCut)), int64(c.announced))
			if !errors.Is(err, errCut) || len(got) != c.came {
				t.Fatalf("%d bytes, %v", len(got), err)
			}
			held, _, _ := x.h.BodyMemory()
			if len(*x.pooled) > c.most || x.h.spares.peak > int64(c.most+c.most/trustByte) || held != int64(len(*x.pooled)) {
				t.Errorf("%d bytes held, %d counted, %d at most, want no more than %d", len(*x.pooled), held, x.h.spares.peak, c.most)
			}
			x.dropBody()
			if held, _, _ = x.h.BodyMemory(); x.h.spares.inUse != 0 || held != 0 {
				t.Errorf("%d bytes are in use in the end, %d counted", x.h.spares.inUse, held)
			}
			if timer := x.h.spares.timer; timer != nil {
				timer.Stop()
			}
		})
	}
}

// A body takes its own size, and the step before that while it is moved: not twice its
// size because it is a little longer than what a step is good for.
func TestMemoryOfOneBody(t *testing.T) {
	t.Parallel()
	for _, n := range []int{64 * firstRoom, 64*firstRoom + 1, 64*firstRoom + 500, 96 * firstRoom} {
		x := &exchange{h: &Handler{}}
		if _, err := x.readAll(bytes.NewReader(make([]byte, n)), int64(n)); err != nil {
			t.Fatal(err)
		}
		if most := int64(spareSize(n) + 16*firstRoom); x.h.spares.peak > most {
			t.Errorf("a body of %d bytes took %d at most, want %d", n, x.h.spares.peak, most)
		}
		x.dropBody()
		x.h.spares.timer.Stop()
	}
}

// However a body of known length comes, and in however many steps its memory
// is taken, it is the body that was sent, or told to be cut.
func TestReadAnnounced(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, minPooledBody, largeBody, largeBody + 1, firstRoom, firstRoom + 1,
		trustByte*firstRoom - 1, trustByte * firstRoom, trustByte*firstRoom + 1, 2*trustByte*firstRoom - 1, 2*trustByte*firstRoom + 1, maxPooledBody + 1, 40 << 20} {
		sent := make([]byte, n)
		for i := range sent {
			sent[i] = byte(i * 7 >> 3)
		}
		for name, r := range map[string]io.Reader{
			"whole":         bytes.NewReader(sent),
			"end with data": iotest.DataErrReader(bytes.NewReader(sent)),
			"halves":        iotest.HalfReader(bytes.NewReader(sent)),
		} {
			x := &exchange{h: &Handler{}}
			got, err := x.readAll(r, int64(n))
			if err != nil || !bytes.Equal(got, sent) {
				t.Errorf("%d bytes, %s: %d bytes came, %v", n, name, len(got), err)
			}
			x.dropBody()
			if x.h.spares.inUse != 0 {
				t.Errorf("%d bytes, %s: %d are in use in the end", n, name, x.h.spares.inUse)
			}
			if timer := x.h.spares.timer; timer != nil {
				timer.Stop()
			}
		}
		for _, cut := range []int{0, min(firstRoom, n-1), n - 1} {
			x := &exchange{h: &Handler{}}
			want := io.ErrUnexpectedEOF
			if cut == 0 {
				want = io.EOF
			}
			if got, err := x.readAll(bytes.NewReader(sent[:cut]), int64(n)); !errors.Is(err, want) || len(got) != cut {
				t.Errorf("%d of %d bytes: %d came, %v", cut, n, len(got), err)
			}
			x.dropBody()
			if timer := x.h.spares.timer; timer != nil {
				timer.Stop()
			}
		}
		x := &exchange{h: &Handler{}}
		if _, err := x.readAll(io.MultiReader(bytes.NewReader(sent), strings.NewReader("y")), int64(n)); !errors.Is(err, errSurplus) {
			t.Errorf("%d bytes and one more: %v", n, err)
		}
		x.dropBody()
		if timer := x.h.spares.timer; timer != nil {
			timer.Stop()
		}
	}
}
