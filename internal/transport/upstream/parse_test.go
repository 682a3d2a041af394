package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/transport/http1"
)

// reading is the answer that was parsed from the bytes of a connection.
type reading struct {
	status   int
	header   http.Header
	length   int64
	body     string
	err      error // of the head or the body; nil for a clean end
	head     bool  // the head was accepted
	reusable bool  // the connection could be reused
}

// read runs the reading side of an exchange over src.
func read(t testing.TB, method string, src io.Reader, size int) reading {
	t.Helper()
	p := NewPool(Options{}.Patient())
	defer p.Close()
	h, _ := p.activeHost(&instance.Instance{Key: instance.Key{Address: "127.0.0.1:1"}})
	closed := false
	c := &conn{reader: src, host: h, generation: h.generation, abort: func() { closed = true }}
	var hd head
	for range maxInterim + 1 {
		if err := c.readHead(&hd); err != nil {
			c.close()
			return reading{err: err}
		}
		if hd.status >= 200 {
			break
		}
	}
	a := &answer{ctx: t.Context(), unwatch: func() bool { return true }, pool: p, conn: c}
	if err := a.start(method, &hd, true); err != nil {
		c.close()
		return reading{err: err}
	}
	out := reading{status: a.Status, header: a.Header, length: a.Length, head: true}
	b, err := readAllBy(a, size)
	out.body, out.err = string(b), err
	_ = a.Close()
	out.reusable = !closed
	if n, err := a.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Fatalf("a read behind the end gave %d, %v", n, err)
	}
	return out
}

// readAllBy reads to the end with reads of one size.
func readAllBy(r io.Reader, size int) ([]byte, error) {
	var out []byte
	p := make([]byte, size)
	for {
		n, err := r.Read(p)
		out = append(out, p[:n]...)
		switch {
		case err == io.EOF:
			return out, nil
		case err != nil:
			return out, err
		case n == 0:
			return out, io.ErrNoProgress
		}
	}
}

const chunkedHead = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"

func TestAnswersAccepted(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 9000)
	for _, tc := range []struct {
		name, method, in string
		status           int
		length           int64
		body             string
		reusable         bool
	}{
		{"length", "", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", 200, 3, "abc", true},
		{"spaces around a value", "", "HTTP/1.1 200 OK\r\ncontent-length: \t3 \r\n\r\nabc", 200, 3, "abc", true},
		{"no reason", "", "HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", 200, 0, "", true},
		{"reason with bytes above ASCII", "", "HTTP/1.1 500 na\xc3\xafve\r\nContent-Length: 0\r\n\r\n", 500, 0, "", true},
		{"chunks", "", chunkedHead + "3\r\nabc\r\n0a\r\n0123456789\r\n0\r\n\r\n", 200, -1, "abc0123456789", true},
		{"chunk extension", "", chunkedHead + "3;a=\"b\"\r\nabc\r\n0;x\r\n\r\n", 200, -1, "abc", true},
		{"sixteen digits", "", chunkedHead + "0000000000000003\r\nabc\r\n0\r\n\r\n", 200, -1, "abc", true},
		{"trailer", "", chunkedHead + "3\r\nabc\r\n0\r\nX-Sum: 1\r\nY:\r\n\r\n", 200, -1, "abc", true},
		{"chunk of many reads", "", chunkedHead + fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(long), long), 200, -1, long, true},
		{"TE in capitals", "", "HTTP/1.1 200 OK\r\nTRANSFER-ENCODING: Chunked\r\n\r\n0\r\n\r\n", 200, -1, "", true},
		{"interim answers", "", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na", 200, 1, "a", true},
		{"close", "", "HTTP/1.1 200 OK\r\nConnection: x, Close\r\nContent-Length: 1\r\n\r\na", 200, 1, "a", false},
		{"until close", "", "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabc", 200, -1, "abc", false},
		{"an empty reason", "", "HTTP/1.1 200 \r\nContent-Length: 0\r\n\r\n", 200, 0, "", true},
		{"old", "", "HTTP/1.0 503 a b\r\n\r\nabc", 503, -1, "abc", false},
		{"old with length", "", "HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\nabc", 200, 3, "abc", false},
		{"old, kept", "", "HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 3\r\n\r\nabc", 200, 3, "abc", true},
		{"no content", "", "HTTP/1.1 204 No Content\r\n\r\n", 204, 0, "", true},
		{"not modified with a length", "", "HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", 304, 0, "", true},
		{"HEAD", "HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", 200, 0, "", true},
		{"bytes behind a body of known length", "", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\naHTTP/1.1 200 OK\r\n\r\n", 200, 1, "a", false},
		{"bytes behind chunks", "", chunkedHead + "1\r\na\r\n0\r\n\r\nH", 200, -1, "a", false},
		{"bytes behind no body", "HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nH", 200, 0, "", false},
		{"a large head", "", "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 60<<10) + "\r\nContent-Length: 1\r\n\r\na", 200, 1, "a", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			for _, size := range []int{1, 7, 600, 1 << 16} {
				for cut, src := range map[string]io.Reader{
					"whole": strings.NewReader(tc.in), "bytes": iotest.OneByteReader(strings.NewReader(tc.in)),
					"halves": iotest.HalfReader(strings.NewReader(tc.in)), "with EOF": iotest.DataErrReader(strings.NewReader(tc.in)),
				} {
					got := read(t, tc.method, src, size)
					if got.err != nil || got.status != tc.status || got.length != tc.length || got.body != tc.body {
						t.Fatalf("%s by %d: %+v", cut, size, got)
					}
					// Bytes that were not read yet are detected before the next use.
					if surplus := strings.HasPrefix(tc.name, "bytes behind"); got.reusable != tc.reusable && (cut == "whole" || !surplus) && (size >= 600 || !surplus) {
						t.Fatalf("%s by %d: used again %v", cut, size, got.reusable)
					}
				}
			}
		})
	}
}

func TestAnswersRefused(t *testing.T) {
	t.Parallel()
	head := func(lines ...string) string {
		return "HTTP/1.1 200 OK\r\n" + strings.Join(lines, "\r\n") + "\r\n\r\nabcdefghi"
	}
	many := strings.Repeat("X: y\r\n", 255)
	for _, tc := range []struct {
		name, in string
		err      error
	}{
		{"TE with CL", head("Transfer-Encoding: chunked", "Content-Length: 9"), http1.ErrBothFramings},
		{"CL with TE", head("Content-Length: 9", "Transfer-Encoding: chunked"), http1.ErrBothFramings},
		{"CL with another TE", head("Content-Length: 9", "Transfer-Encoding: x"), http1.ErrBothFramings},
		{"differing CL", head("Content-Length: 9", "Content-Length: 8"), http1.ErrLength},
		{"equal CL", head("Content-Length: 9", "content-length: 9"), http1.ErrLength},
		{"list of CL", head("Content-Length: 9, 9"), http1.ErrLength},
		{"empty CL", head("Content-Length:"), http1.ErrLength},
		{"signed CL", head("Content-Length: +9"), http1.ErrLength},
		{"negative CL", head("Content-Length: -9"), http1.ErrLength},
		{"hexadecimal CL", head("Content-Length: 0x9"), http1.ErrLength},
		{"CL with a space inside", head("Content-Length: 1 2"), http1.ErrLength},
		{"CL of 19 digits", head("Content-Length: 0000000000000000009"), http1.ErrLength},
		{"CL beyond 63 bits", head("Content-Length: 9223372036854775808"), http1.ErrLength},
		{"TE gzip", head("Transfer-Encoding: gzip"), http1.ErrEncoding},
		{"TE list", head("Transfer-Encoding: gzip, chunked"), http1.ErrEncoding},
		{"TE twice", head("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"), http1.ErrEncoding},
		{"TE with the Kelvin sign", head("Transfer-Encoding: chun\u212aed"), http1.ErrEncoding},
		{"TE with a quirk", head("Transfer-Encoding: \x0bchunked"), http1.ErrValue},
		{"TE in HTTP/1.0", "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", http1.ErrEncoding},
		{"fold", head("X: a", " b", "Content-Length: 1"), http1.ErrFold},
		{"fold first", head(" X: a"), http1.ErrFold},
		{"fold first, with a tab", head("\tX: a"), http1.ErrFold},
		{"bare LF", "HTTP/1.1 200 OK\nContent-Length: 1\n\na", http1.ErrBareLF},
		{"bare LF inside", head("X: a\nY: b", "Content-Length: 1"), http1.ErrBareLF},
		{"bare LF for the empty line", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\na", http1.ErrBareLF},
		{"bare CR", head("X: a\rY: b", "Content-Length: 1"), http1.ErrValue},
		{"space before the colon", head("Content-Length : 1"), http1.ErrName},
		{"no colon", head("Content-Length 1"), http1.ErrName},
		{"no name", head(": 1"), http1.ErrName},
		{"name with a control", head("Content\x00Length: 1"), http1.ErrName},
		{"name above ASCII", head("Con\xc3\xa4nt: 1"), http1.ErrName},
		{"NUL in a value", head("X: a\x00b", "Content-Length: 1"), http1.ErrValue},
		{"DEL in a value", head("X: a\x7fb", "Content-Length: 1"), http1.ErrValue},
		{"status of letters", "HTTP/1.1 2OO OK\r\n\r\n", http1.ErrStatusLine},
		{"status below 100", "HTTP/1.1 099 OK\r\n\r\n", http1.ErrStatusLine},
		{"status of four digits", "HTTP/1.1 2000 OK\r\n\r\n", http1.ErrStatusLine},
		{"status of two digits", "HTTP/1.1 20\r\n\r\n", http1.ErrStatusLine},
		{"signed status", "HTTP/1.1 +20 OK\r\n\r\n", http1.ErrStatusLine},
		{"no status", "HTTP/1.1\r\n\r\n", http1.ErrStatusLine},
		{"two spaces", "HTTP/1.1  200 OK\r\n\r\n", http1.ErrStatusLine},
		{"control in the reason", "HTTP/1.1 200 O\x00K\r\n\r\n", http1.ErrStatusLine},
		{"HTTP/2", "HTTP/2.0 200 OK\r\n\r\n", http1.ErrNotHTTP},
		{"no version", "HTTP\r\n\r\n", http1.ErrNotHTTP},
		{"HTTP/1.2", "HTTP/1.2 200 OK\r\n\r\n", http1.ErrNotHTTP},
		{"small letters", "http/1.1 200 OK\r\n\r\n", http1.ErrNotHTTP},
		{"an empty line first", "\r\nHTTP/1.1 200 OK\r\n\r\n", http1.ErrStatusLine},
		{"another protocol without a line", "SSH-2.0-OpenSSH_9.6", http1.ErrNotHTTP},
		{"no framing on a kept connection", head("X: y"), errNoFraming},
		{"too many lines", "HTTP/1.1 200 OK\r\n" + many + "Content-Length: 0\r\n\r\n", http1.ErrManyFields},
		{"too large", "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", maxHead) + "\r\n\r\n", errHeadTooLarge},
		{"cut", "HTTP/1.1 200 OK\r\nConte", io.ErrUnexpectedEOF},
		{"nothing", "", io.ErrUnexpectedEOF},

		{"short body", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", io.ErrUnexpectedEOF},
		{"no chunk size", chunkedHead + "\r\nabc\r\n0\r\n\r\n", http1.ErrChunkSize},
		{"chunk longer than its size", chunkedHead + "3\r\nabcd\r\n0\r\n\r\n", http1.ErrChunkEnd},
		{"another answer for a trailer", chunkedHead + "0\r\nHTTP/1.1 200 OK\r\n\r\n", http1.ErrTrailer},
		{"cut in the size", chunkedHead + "3", io.ErrUnexpectedEOF},
		{"cut in the data", chunkedHead + "3\r\nab", io.ErrUnexpectedEOF},
		{"cut behind the data", chunkedHead + "3\r\nabc", io.ErrUnexpectedEOF},
		{"cut before the last chunk", chunkedHead + "3\r\nabc\r\n", io.ErrUnexpectedEOF},
		{"cut in the last chunk", chunkedHead + "3\r\nabc\r\n0\r\n", io.ErrUnexpectedEOF},
		{"cut in the last line", chunkedHead + "3\r\nabc\r\n0\r\n\r", io.ErrUnexpectedEOF},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			for _, size := range []int{1, 600, 1 << 16} {
				for cut, src := range map[string]io.Reader{
					"whole": strings.NewReader(tc.in), "bytes": iotest.OneByteReader(strings.NewReader(tc.in)),
					"with EOF": iotest.DataErrReader(strings.NewReader(tc.in)),
				} {
					got := read(t, "", src, size)
					require.True(t, errors.Is(got.err, tc.err) && !errors.Is(got.err, io.EOF) && !got.reusable,
						"%s by %d: %v (again %v), want %v", cut, size, got.err, got.reusable, tc.err)
				}
			}
		})
	}
}

// Bytes after the body's end are detected also in a read straight into the caller's slice.
func TestSurplusInADirectRead(t *testing.T) {
	t.Parallel()
	for surplus, reusable := range map[string]bool{"": true, "H": false} {
		src := io.MultiReader(strings.NewReader(chunkedHead), strings.NewReader("1\r\na\r\n0\r\n\r\n"+surplus))
		got := read(t, "", src, 1<<10)
		assert.True(t, got.err == nil && got.body == "a" && got.reusable == reusable, "%q: %+v", surplus, got)
	}
}

// Once the context has ended, its callback may close the connection at any
// time: the answer is read completely, but the connection is not reused.
func TestEndedContext_ClosesConnection(t *testing.T) {
	t.Parallel()
	for _, stopped := range []bool{true, false} {
		p := NewPool(Options{}.Patient())
		defer p.Close()
		h, _ := p.activeHost(&instance.Instance{})
		closed := false
		c := &conn{reader: strings.NewReader("ab"), host: h, abort: func() { closed = true }, generation: h.generation}
		ctx, end := context.WithCancel(t.Context())
		unwatch := context.AfterFunc(ctx, func() {})
		if !stopped {
			end()
		}
		a := &answer{ctx: t.Context(), unwatch: unwatch, pool: p, conn: c}
		require.NoError(t, a.start("", &head{status: 200, Head: http1.Head{Length: 2}}, true))
		b, err := readAllBy(a, 2)
		require.True(t, err == nil && string(b) == "ab", "%q, %v", b, err)
		assert.True(t, closed != stopped && len(h.idle) == 0 != stopped,
			"stopped %v: closed %v, %d idle", stopped, closed, len(h.idle))
		end()
	}
}
