package forward

import (
	"bytes"
	"testing"
)

// read plays one read of k bytes of value v, as stream does.
func (e *eventBuffer) read(t *testing.T, v byte, k int) {
	t.Helper()
	if !e.makeRoom() {
		t.Fatal("no room")
	}
	if k > len(e.buf)-e.n {
		k = len(e.buf) - e.n
	}
	copy(e.buf[e.n:], bytes.Repeat([]byte{v}, k))
	e.n += k
}

func TestEventBufferFollowsTheStream(t *testing.T) {
	t.Parallel()
	var e eventBuffer
	defer func() { e.release() }()
	size := func(want int, when string) {
		t.Helper()
		if len(e.buf) != want {
			t.Fatalf("%s: %d bytes, want %d", when, len(e.buf), want)
		}
	}
	for range 3 {
		e.read(t, 'a', 300)
		size(smallBuffer, "a quiet stream")
		e.drop(300)
	}
	e.read(t, 'b', smallBuffer)
	e.drop(smallBuffer - 10)
	size(largeBuffer, "after a read that filled it")
	if e.n != 10 || !bytes.Equal(e.buf[:10], bytes.Repeat([]byte{'b'}, 10)) {
		t.Fatalf("the unsent bytes were lost: %q", e.buf[:e.n])
	}
	e.drop(10)
	for range calmReads - 1 { // the drop above was one
		e.read(t, 'c', 300)
		size(largeBuffer, "while it calms down")
		e.drop(300)
	}
	e.read(t, 'd', 300)
	size(smallBuffer, "calm again")
}

// A stream that leaves half an event in the buffer must not lose it when it calms down.
func TestEventBufferKeepsHalfEvents(t *testing.T) {
	t.Parallel()
	var e eventBuffer
	defer func() { e.release() }()
	e.read(t, 'x', smallBuffer)
	e.drop(smallBuffer)
	for range 2 * calmReads {
		e.read(t, 'y', 100)
		e.drop(50)
		e.drop(e.n - 7)
		if e.n != 7 || e.buf[6] != 'y' {
			t.Fatalf("lost bytes: %d left, %q", e.n, e.buf[:e.n])
		}
	}
}

func TestEventBufferGrowsToTheLimit(t *testing.T) {
	t.Parallel()
	var e eventBuffer
	defer func() { e.release() }()
	total := 0
	for e.makeRoom() {
		for i := e.n; i < len(e.buf); i++ {
			e.buf[i] = byte(i)
		}
		total, e.n = len(e.buf), len(e.buf)
	}
	if total != maxEvent {
		t.Fatalf("grew to %d", total)
	}
	for i := range total {
		if e.buf[i] != byte(i) {
			t.Fatalf("byte %d is %d", i, e.buf[i])
		}
	}
}
