package scratch

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestBodyClasses(t *testing.T) {
	t.Parallel()
	last := -1
	for n := int64(minPooledBody); n <= maxPooledBody; n += 1 + n/97 {
		class, size, ok := bodyClass(n)
		require.True(t, ok && int64(size) >= n && int64(size) <= n+n/bodySteps+1,
			"%d bytes: class %d of %d bytes, %v", n, class, size, ok)
		require.True(t, class >= last && class < len(bodyPools),
			"%d bytes: class %d after %d of %d", n, class, last, len(bodyPools))
		last = class
		// A buffer returns to its own class.
		if again, same, ok := bodyClass(int64(size)); !ok || again != class || same != size {
			t.Fatalf("a buffer of %d bytes from class %d goes back to %d (%d bytes)", size, class, again, same)
		}
	}
	for _, n := range []int64{-1, 0, 1, minPooledBody - 1, maxPooledBody + 1, 1 << 40} {
		if _, _, ok := bodyClass(n); ok {
			t.Errorf("%d bytes are pooled", n)
		}
	}
	if _, _, ok := bodyClass(maxPooledBody); !ok {
		t.Error("the largest of these sizes is not pooled")
	}
}

// end releases a body, after which no memory may be counted.
func end(t *testing.T, b *Bodies, body *Body) {
	t.Helper()
	body.Release(true)
	if held, _, _ := b.Memory(); held != 0 {
		t.Errorf("%d bytes are held in the end", held)
	}
}

// A client that announces a large body holds memory for the bytes that have arrived, not for the announced
// length.
func TestBodyMemory_FollowsBytesReceived(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ announced, came, most int }{
		{firstBuffer, 1, firstBuffer},
		{firstBuffer + 1, 0, firstBuffer},
		{8 << 20, 1, firstBuffer},
		{8 << 20, firstBuffer - 1, firstBuffer},
		{8 << 20, 32 << 10, 4 * firstBuffer},
		{8 << 20, 100 << 10, 16 * firstBuffer},
		{1 << 40, 100 << 10, 16 * firstBuffer},
	} {
		t.Run(fmt.Sprintf("%d of %d bytes", c.came, c.announced), func(t *testing.T) {
			t.Parallel()
			errCut := errors.New("cut")
			var b Bodies
			body, err := b.Read(io.MultiReader(strings.NewReader(strings.Repeat("x", c.came)),
				iotest.ErrReader(errCut)), int64(c.announced))
			require.True(t, errors.Is(err, errCut) && len(body.Bytes()) == c.came, "%d bytes, %v", len(body.Bytes()), err)
			held, _, _ := b.Memory()
			assert.True(t, len(*body.pooled) <= c.most && held == int64(len(*body.pooled)),
				"%d bytes held, %d counted, want no more than %d", len(*body.pooled), held, c.most)
			end(t, &b, body)
		})
	}
}

// A body takes memory of its own size, even while its buffer grows, or at most twice that if its length is
// unknown. Other bodies may use the rest.
func TestMemoryOfOneBody(t *testing.T) {
	t.Parallel()
	for _, n := range []int{64 * firstBuffer, 64*firstBuffer + 1, 64*firstBuffer + 500, 96 * firstBuffer, maxPooledBody + 1} {
		_, size, _ := bodyClass(int64(n))
		for length, most := range map[int]int{n: size, -1: 2 * n} {
			b := NewBodies(int64(1 + most))
			b.held.Store(1)
			body, err := b.Read(bytes.NewReader(make([]byte, n)), int64(length))
			assert.NoError(t, err, "a body of %d bytes, %d announced, takes more than %d", n, length, most)
			b.held.Add(-1)
			end(t, b, body)
		}
	}
}

// pattern returns n bytes in which a shifted part is detectable.
func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i * 7 >> 3)
	}
	return b
}

// A body of known length may arrive in any reads, and its memory be allocated in any steps: the result is the
// body as it was sent, or an error that it is cut.
func TestReadAnnounced(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, minPooledBody, firstBuffer, firstBuffer + 1,
		growFactor*firstBuffer - 1, growFactor * firstBuffer, growFactor*firstBuffer + 1, 2*growFactor*firstBuffer - 1, 2*growFactor*firstBuffer + 1, maxPooledBody + 1, 40 << 20} {
		sent := pattern(n)
		for name, r := range map[string]io.Reader{
			"whole":         bytes.NewReader(sent),
			"end with data": iotest.DataErrReader(bytes.NewReader(sent)),
			"halves":        iotest.HalfReader(bytes.NewReader(sent)),
		} {
			var b Bodies
			body, err := b.Read(r, int64(n))
			assert.True(t, err == nil && bytes.Equal(body.Bytes(), sent),
				"%d bytes, %s: %d bytes came, %v", n, name, len(body.Bytes()), err)
			end(t, &b, body)
		}
		for _, cut := range []int{0, min(firstBuffer, n-1), n - 1} {
			var b Bodies
			want := io.ErrUnexpectedEOF
			if cut == 0 {
				want = io.EOF
			}
			body, err := b.Read(bytes.NewReader(sent[:cut]), int64(n))
			assert.True(t, errors.Is(err, want) && len(body.Bytes()) == cut,
				"%d of %d bytes: %d came, %v", cut, n, len(body.Bytes()), err)
			end(t, &b, body)
		}
		var b Bodies
		body, err := b.Read(io.MultiReader(bytes.NewReader(sent), strings.NewReader("y")), int64(n))
		assert.True(t, errors.Is(err, errSurplus), "%d bytes and one more: %v", n, err)
		end(t, &b, body)
	}
}

// A body that an upstream client may still be sending is never reused.
func TestBody_NotReusedWhileRead(t *testing.T) {
	t.Parallel()
	var b Bodies
	const size = 1<<20 + 1<<19 // no other test has bodies of this class
	seen := map[*byte]bool{}
	for range 50 {
		body, err := b.Read(strings.NewReader(strings.Repeat("x", size)), size)
		require.NoError(t, err)
		first := &body.Bytes()[0]
		require.False(t, seen[first], "the same memory again")
		seen[first] = true
		body.Release(false)
	}
	runtime.KeepAlive(seen)
}

func TestReadUnannounced(t *testing.T) {
	t.Parallel()
	errCut := errors.New("cut")
	for _, n := range []int{0, 1, minPooledBody - 1, minPooledBody, minPooledBody + 1, 2 * minPooledBody, 2*minPooledBody + 1, 1 << 20, maxPooledBody + 1} {
		want := pattern(n)
		for name, r := range map[string]io.Reader{
			"whole":         bytes.NewReader(want),
			"halves":        iotest.HalfReader(bytes.NewReader(want)),
			"end with data": iotest.DataErrReader(bytes.NewReader(want)),
		} {
			var b Bodies
			body, err := b.Read(r, -1)
			assert.True(t, err == nil && bytes.Equal(body.Bytes(), want),
				"%d bytes, %s: %d bytes came, %v", n, name, len(body.Bytes()), err)
			held, _, _ := b.Memory()
			if n < minPooledBody && held != 0 || n > minPooledBody && (held != int64(cap(body.Bytes())) || held > int64(2*n)) {
				t.Errorf("%d bytes, %s: %d bytes are counted, the buffer has %d", n, name, held, cap(body.Bytes()))
			}
			end(t, &b, body)
		}
		var b Bodies
		body, err := b.Read(io.MultiReader(bytes.NewReader(want), iotest.ErrReader(errCut)), -1)
		assert.True(t, errors.Is(err, errCut), "%d bytes and an error: %v", n, err)
		end(t, &b, body)
	}
}

// A short body of unknown length is read even if others hold all memory, like one of known length.
func TestReadUnannounced_WithoutMemory(t *testing.T) {
	t.Parallel()
	b := NewBodies(1)
	for n, want := range map[int]error{0: nil, 200: nil, minPooledBody - 1: nil, minPooledBody + 1: ErrNoMemory} {
		b.held.Store(1)
		body, err := b.Read(bytes.NewReader(pattern(n)), -1)
		if !errors.Is(err, want) || err == nil && len(body.Bytes()) != n {
			t.Errorf("%d bytes: %v", n, err)
		}
		b.held.Store(0)
		end(t, b, body)
	}
}

// Only io.EOF itself is the end: an error that wraps it means a body cut short, however much of it has
// arrived.
func TestTruncatedBody_NotComplete(t *testing.T) {
	t.Parallel()
	cut := fmt.Errorf("cut: %w", io.EOF)
	for _, n := range []int{0, 10, minPooledBody, 100 << 10, 1 << 20} {
		var b Bodies
		body, err := b.Read(io.MultiReader(strings.NewReader(strings.Repeat("x", n)), iotest.ErrReader(cut)), -1)
		assert.Error(t, err, "%d bytes and a cut are taken for a whole body", n)
		end(t, &b, body)
	}
}
