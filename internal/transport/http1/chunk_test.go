package http1

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// decode removes the framing of src in pieces of cut bytes, each in
// a separate slice. rest is the number of bytes after the end.
func decode(src string, cut int) (body string, rest int, err error) {
	var d ChunkDecoder
	var out strings.Builder
	for at := 0; at < len(src) && !d.Done(); {
		piece := []byte(src[at:min(at+cut, len(src))])
		for len(piece) > 0 && !d.Done() {
			n, used, err := d.Decode(piece, piece)
			out.Write(piece[:n])
			if at += used; err != nil {
				return out.String(), len(src) - at, err
			}
			piece = piece[used:]
		}
		rest = len(src) - at
	}
	if !d.Done() {
		err = io.ErrUnexpectedEOF
	}
	return out.String(), rest, err
}

func TestChunksRefused(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, in string
		err      error
	}{
		{"chunk size with 0x", "0x3\r\nabc\r\n0\r\n\r\n", ErrChunkSize},
		{"signed chunk size", "+3\r\nabc\r\n0\r\n\r\n", ErrChunkSize},
		{"space behind a size", "3 \r\nabc\r\n0\r\n\r\n", ErrChunkSize},
		{"size of 17 digits", "00000000000000003\r\nabc\r\n0\r\n\r\n", ErrChunkSize},
		{"size beyond 63 bits", "8000000000000000\r\nabc\r\n0\r\n\r\n", ErrChunkSize},
		{"size with a bare LF", "3\nabc\r\n0\r\n\r\n", ErrChunkSize},
		{"size with CR only", "3\rabc\r\n0\r\n\r\n", ErrChunkSize},
		{"NUL in an extension", "3;\x00\r\nabc\r\n0\r\n\r\n", ErrExtension},
		{"bare LF in an extension", "3;a\nabc\r\n0\r\n\r\n", ErrExtension},
		{"long extension", "3;" + strings.Repeat("x", maxExtension+1) + "\r\nabc\r\n0\r\n\r\n", ErrExtension},
		{"many extensions", strings.Repeat("1;"+strings.Repeat("x", maxExtension)+"\r\na\r\n", 17) + "0\r\n\r\n", ErrExtension},
		{"chunk with a bare LF", "3\r\nabc\n0\r\n\r\n", ErrChunkEnd},
		{"chunk with CR only", "3\r\nabc\r0\r\n\r\n", ErrChunkEnd},
		{"trailer without a name", "0\r\n: x\r\n\r\n", ErrTrailer},
		{"trailer with a space", "0\r\nX : x\r\n\r\n", ErrTrailer},
		{"folded trailer", "0\r\nX: x\r\n y\r\n\r\n", ErrTrailer},
		{"trailer with a bare LF", "0\r\nX: x\n\r\n", ErrTrailer},
		{"end with a bare LF", "0\r\n\n", ErrTrailer},
		{"end with CR only", "0\r\n\rX", ErrTrailer},
		{"large trailer", "0\r\nX: " + strings.Repeat("x", maxTrailer) + "\r\n\r\n", ErrLargeTrailer},
		{"long trailer", "0\r\n" + strings.Repeat("X:\r\n", maxTrailerLines+1) + "\r\n", ErrLargeTrailer},
		{"cut", "3\r\nabc\r\n0\r\n\r", io.ErrUnexpectedEOF},
	} {
		for _, cut := range []int{1, 2, 7, 1 << 16} {
			body, _, err := decode(tc.in, cut)
			assert.ErrorIs(t, err, tc.err, "%s by %d: %q", tc.name, cut, body)
		}
	}
}

// The bytes after the last chunk are left.
func TestChunksWritten(t *testing.T) {
	t.Parallel()
	var wire []byte
	var want strings.Builder
	for _, n := range []int{1, 15, 16, 4096, 70_000} {
		data := strings.Repeat("x", n)
		wire = fmt.Appendf(wire, "%x\r\n%s\r\n", n, data)
		want.WriteString(data)
	}
	wire = append(wire, "0\r\n\r\nGET"...)
	for _, cut := range []int{1, 5, 600, 1 << 20} {
		if body, rest, err := decode(string(wire), cut); err != nil || body != want.String() || rest != len("GET") {
			t.Errorf("by %d: %d bytes of %d, %d are left, %v", cut, len(body), want.Len(), rest, err)
		}
	}
}

// A full destination leaves the rest for the next call.
func TestChunks_FullDestination(t *testing.T) {
	t.Parallel()
	var d ChunkDecoder
	src := []byte("3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
	var got []byte
	for !d.Done() {
		var dst [2]byte
		n, used, err := d.Decode(dst[:], src)
		require.True(t, err == nil && used != 0, "%d bytes, %v", used, err)
		got, src = append(got, dst[:n]...), src[used:]
	}
	assert.True(t, string(got) == "abcde" && len(src) == 0, "%q, %q is left", got, src)
}
