package scratch

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

// read simulates one read of a stream: k bytes of value v.
func (e *Events) read(t *testing.T, v byte, k int) {
	t.Helper()
	require.NoError(t, e.MakeSpace(0), "no memory for a small event")
	if k > len(e.Buf)-e.N {
		k = len(e.Buf) - e.N
	}
	copy(e.Buf[e.N:], bytes.Repeat([]byte{v}, k))
	e.N += k
}

func TestEventBuffer_Resizes(t *testing.T) {
	t.Parallel()
	var e Events
	defer func() { e.Release() }()
	size := func(want int, when string) {
		t.Helper()
		require.Equal(t, want, len(e.Buf), "%s: bytes", when)
	}
	for range 3 {
		e.read(t, 'a', 300)
		size(smallBuffer, "a quiet stream")
		e.Drop(300)
	}
	e.read(t, 'b', smallBuffer)
	e.Drop(smallBuffer - 10)
	size(largeBuffer, "after a read that filled it")
	if e.N != 10 || !bytes.Equal(e.Buf[:10], bytes.Repeat([]byte{'b'}, 10)) {
		t.Fatalf("the unsent bytes were lost: %q", e.Buf[:e.N])
	}
	e.Drop(10)
	for range shrinkAfter - 1 { // the drop above was the first one
		e.read(t, 'c', 300)
		size(largeBuffer, "while it calms down")
		e.Drop(300)
	}
	e.read(t, 'd', 300)
	size(smallBuffer, "calm again")
}

// A stream with half an event in its buffer must not lose it when the buffer shrinks.
func TestEventBuffer_KeepsPartialEvents(t *testing.T) {
	t.Parallel()
	var e Events
	defer func() { e.Release() }()
	e.read(t, 'x', smallBuffer)
	e.Drop(smallBuffer)
	for range 2 * shrinkAfter {
		e.read(t, 'y', 100)
		e.Drop(50)
		e.Drop(e.N - 7)
		if e.N != 7 || e.Buf[6] != 'y' {
			t.Fatalf("lost bytes: %d left, %q", e.N, e.Buf[:e.N])
		}
	}
}

func TestEventBuffer_GrowsToLimit(t *testing.T) {
	t.Parallel()
	var e Events
	defer func() { e.Release() }()
	total := 0
	for e.MakeSpace(0) == nil {
		for i := e.N; i < len(e.Buf); i++ {
			e.Buf[i] = byte(i)
		}
		total, e.N = len(e.Buf), len(e.Buf)
	}
	require.Equal(t, MaxEvent, total, "grew to")
	for i := range total {
		require.Equal(t, byte(i), e.Buf[i], "byte %d", i)
	}
}
