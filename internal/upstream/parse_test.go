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

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/lifetime"
)

// reading is what came out of the bytes of a connection.
type reading struct {
	status int
	header http.Header
	length int64
	body   string
	err    error // of the head or the body, nil for a clean end
	head   bool  // the head was taken
	again  bool  // the connection could have been used again
}

// read runs the answer side of an exchange over src.
func read(t testing.TB, method string, src io.Reader, size int) reading {
	t.Helper()
	p := NewPool(Options{})
	defer p.Close()
	h, _ := p.enter(&instance.Instance{Key: instance.Key{Address: "127.0.0.1:1"}}, nil)
	closed := false
	c := &conn{in: src, host: h, generation: h.generation, abort: func() { closed = true }}
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
	c.take(0)
	a := &answer{ctx: t.Context(), pool: p, conn: c}
	if err := a.start(method, &hd, true); err != nil {
		c.close()
		return reading{err: err}
	}
	out := reading{status: a.Status, header: a.Header, length: a.Length, head: true}
	b, err := drainBy(a, size)
	out.body, out.err = string(b), err
	_ = a.Close()
	out.again = !closed
	if n, err := a.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Fatalf("a read behind the end gave %d, %v", n, err)
	}
	return out
}

// drainBy reads to the end in reads of one size.
func drainBy(r io.Reader, size int) ([]byte, error) {
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

func TestAnswersTaken(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 9000)
	for _, tc := range []struct {
		name, method, in string
		status           int
		length           int64
		body             string
		again            bool
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
		{"old", "", "HTTP/1.0 200 OK\r\n\r\nabc", 200, -1, "abc", false},
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
					// Bytes that were not read yet are found before the next use.
					if surplus := strings.HasPrefix(tc.name, "bytes behind"); got.again != tc.again && (cut == "whole" || !surplus) && (size >= 600 || !surplus) {
						t.Fatalf("%s by %d: used again %v", cut, size, got.again)
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
	many := strings.Repeat("X: y\r\n", maxLines)
	for _, tc := range []struct {
		name, in string
		err      error
	}{
		{"TE with CL", head("Transfer-Encoding: chunked", "Content-Length: 9"), errBothFramings},
		{"CL with TE", head("Content-Length: 9", "Transfer-Encoding: chunked"), errBothFramings},
		{"differing CL", head("Content-Length: 9", "Content-Length: 8"), errLength},
		{"equal CL", head("Content-Length: 9", "content-length: 9"), errLength},
		{"list of CL", head("Content-Length: 9, 9"), errLength},
		{"empty CL", head("Content-Length:"), errLength},
		{"signed CL", head("Content-Length: +9"), errLength},
		{"negative CL", head("Content-Length: -9"), errLength},
		{"hexadecimal CL", head("Content-Length: 0x9"), errLength},
		{"CL with a space inside", head("Content-Length: 1 2"), errLength},
		{"CL beyond 63 bits", head("Content-Length: 9223372036854775808"), errLength},
		{"TE gzip", head("Transfer-Encoding: gzip"), errEncoding},
		{"TE list", head("Transfer-Encoding: gzip, chunked"), errEncoding},
		{"TE twice", head("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"), errEncoding},
		{"TE with a quirk", head("Transfer-Encoding: \x0bchunked"), errValue},
		{"TE in HTTP/1.0", "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", errEncoding},
		{"fold", head("X: a", " b", "Content-Length: 1"), errFold},
		{"fold first", head(" X: a"), errFold},
		{"bare LF", "HTTP/1.1 200 OK\nContent-Length: 1\n\na", errBareLF},
		{"bare LF inside", head("X: a\nY: b", "Content-Length: 1"), errBareLF},
		{"bare LF for the empty line", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\na", errBareLF},
		{"bare CR", head("X: a\rY: b", "Content-Length: 1"), errValue},
		{"space before the colon", head("Content-Length : 1"), errName},
		{"no colon", head("Content-Length 1"), errName},
		{"no name", head(": 1"), errName},
		{"name with a control", head("Content\x00Length: 1"), errName},
		{"name above ASCII", head("Con\xc3\xa4nt: 1"), errName},
		{"NUL in a value", head("X: a\x00b", "Content-Length: 1"), errValue},
		{"DEL in a value", head("X: a\x7fb", "Content-Length: 1"), errValue},
		{"status of letters", "HTTP/1.1 2OO OK\r\n\r\n", errStatusLine},
		{"status below 100", "HTTP/1.1 099 OK\r\n\r\n", errStatusLine},
		{"status of four digits", "HTTP/1.1 2000 OK\r\n\r\n", errStatusLine},
		{"status of two digits", "HTTP/1.1 20\r\n\r\n", errStatusLine},
		{"two spaces", "HTTP/1.1  200 OK\r\n\r\n", errStatusLine},
		{"control in the reason", "HTTP/1.1 200 O\x00K\r\n\r\n", errStatusLine},
		{"HTTP/2", "HTTP/2.0 200 OK\r\n\r\n", errNotHTTP},
		{"HTTP/1.2", "HTTP/1.2 200 OK\r\n\r\n", errNotHTTP},
		{"small letters", "http/1.1 200 OK\r\n\r\n", errNotHTTP},
		{"an empty line first", "\r\nHTTP/1.1 200 OK\r\n\r\n", errStatusLine},
		{"another protocol without a line", "SSH-2.0-OpenSSH_9.6", errNotHTTP},
		{"no framing on a kept connection", head("X: y"), errNoFraming},
		{"too many lines", "HTTP/1.1 200 OK\r\n" + many + "Content-Length: 0\r\n\r\n", errHeadTooLarge},
		{"too large", "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", maxHead) + "\r\n\r\n", errHeadTooLarge},
		{"cut", "HTTP/1.1 200 OK\r\nConte", io.ErrUnexpectedEOF},
		{"nothing", "", io.ErrUnexpectedEOF},

		{"short body", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", io.ErrUnexpectedEOF},
		{"no chunk size", chunkedHead + "\r\nabc\r\n0\r\n\r\n", errChunkSize},
		{"chunk size with 0x", chunkedHead + "0x3\r\nabc\r\n0\r\n\r\n", errChunkSize},
		{"signed chunk size", chunkedHead + "+3\r\nabc\r\n0\r\n\r\n", errChunkSize},
		{"space behind a size", chunkedHead + "3 \r\nabc\r\n0\r\n\r\n", errChunkSize},
		{"size of 17 digits", chunkedHead + "00000000000000003\r\nabc\r\n0\r\n\r\n", errChunkSize},
		{"size beyond 63 bits", chunkedHead + "8000000000000000\r\nabc\r\n0\r\n\r\n", errChunkSize},
		{"size with a bare LF", chunkedHead + "3\nabc\r\n0\r\n\r\n", errChunkSize},
		{"size with CR only", chunkedHead + "3\rabc\r\n0\r\n\r\n", errChunkSize},
		{"NUL in an extension", chunkedHead + "3;\x00\r\nabc\r\n0\r\n\r\n", errChunkExt},
		{"bare LF in an extension", chunkedHead + "3;a\nabc\r\n0\r\n\r\n", errChunkExt},
		{"long extension", chunkedHead + "3;" + strings.Repeat("x", maxExtension+1) + "\r\nabc\r\n0\r\n\r\n", errChunkExt},
		{"many extensions", chunkedHead + strings.Repeat("1;"+strings.Repeat("x", maxExtension)+"\r\na\r\n", 17) + "0\r\n\r\n", errChunkExt},
		{"chunk longer than its size", chunkedHead + "3\r\nabcd\r\n0\r\n\r\n", errChunkEnd},
		{"chunk with a bare LF", chunkedHead + "3\r\nabc\n0\r\n\r\n", errChunkEnd},
		{"chunk with CR only", chunkedHead + "3\r\nabc\r0\r\n\r\n", errChunkEnd},
		{"trailer without a name", chunkedHead + "0\r\n: x\r\n\r\n", errTrailer},
		{"trailer with a space", chunkedHead + "0\r\nX : x\r\n\r\n", errTrailer},
		{"folded trailer", chunkedHead + "0\r\nX: x\r\n y\r\n\r\n", errTrailer},
		{"trailer with a bare LF", chunkedHead + "0\r\nX: x\n\r\n", errTrailer},
		{"end with a bare LF", chunkedHead + "0\r\n\n", errTrailer},
		{"end with CR only", chunkedHead + "0\r\n\rX", errTrailer},
		{"another answer for a trailer", chunkedHead + "0\r\nHTTP/1.1 200 OK\r\n\r\n", errTrailer},
		{"large trailer", chunkedHead + "0\r\nX: " + strings.Repeat("x", maxTrailer) + "\r\n\r\n", errTrailerTooBig},
		{"long trailer", chunkedHead + "0\r\n" + strings.Repeat("X:\r\n", maxTrailerLines+1) + "\r\n", errTrailerTooBig},
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
					if !errors.Is(got.err, tc.err) || errors.Is(got.err, io.EOF) || got.again {
						t.Fatalf("%s by %d: %v (again %v), want %v", cut, size, got.err, got.again, tc.err)
					}
				}
			}
		})
	}
}

// Bytes behind the end are found also in a read that went straight into the
// caller's slice.
func TestSurplusInADirectRead(t *testing.T) {
	t.Parallel()
	for surplus, again := range map[string]bool{"": true, "H": false} {
		src := io.MultiReader(strings.NewReader(chunkedHead), strings.NewReader("1\r\na\r\n0\r\n\r\n"+surplus))
		if got := read(t, "", src, 1<<10); got.err != nil || got.body != "a" || got.again != again {
			t.Errorf("%q: %+v", surplus, got)
		}
	}
}

// When the context's function has been let loose it may close the connection at
// any time: the answer is whole, and the connection is nobody's any more.
func TestEndedContextCostsTheConnection(t *testing.T) {
	t.Parallel()
	for _, stopped := range []bool{true, false} {
		p := NewPool(Options{})
		defer p.Close()
		h, _ := p.enter(&instance.Instance{}, nil)
		closed := false
		c := &conn{in: strings.NewReader("ab"), host: h, abort: func() { closed = true }, generation: h.generation}
		ctx, end := context.WithCancel(t.Context())
		watch := lifetime.AfterFunc(ctx, func() {})
		if !stopped {
			end()
		}
		a := &answer{ctx: t.Context(), watch: watch, pool: p, conn: c}
		if err := a.start("", &head{status: 200, length: 2}, true); err != nil {
			t.Fatal(err)
		}
		if b, err := drainBy(a, 2); err != nil || string(b) != "ab" {
			t.Fatalf("%q, %v", b, err)
		}
		if closed == stopped || len(h.idle) == 0 == stopped {
			t.Errorf("stopped %v: closed %v, %d idle", stopped, closed, len(h.idle))
		}
		end()
	}
}

func TestHeaderOfAnAnswer(t *testing.T) {
	t.Parallel()
	got := read(t, "", strings.NewReader("HTTP/1.1 200 OK\r\ndate: now\r\nserver: uvicorn\r\nX-rEQUEST-iD:a\r\nset-cookie: a\r\nSet-Cookie: b\r\n"+
		"x-empty:\r\ntransfer-encoding: chunked\r\ncontent-type: text/event-stream; charset=utf-8\r\n\r\n0\r\n\r\n"), 600)
	want := http.Header{
		"Date": {"now"}, "Server": {"uvicorn"}, "X-Request-Id": {"a"}, "Set-Cookie": {"a", "b"}, "X-Empty": {""},
		"Content-Type": {"text/event-stream; charset=utf-8"},
	}
	if fmt.Sprint(got.header) != fmt.Sprint(want) {
		t.Fatalf("%v\nwant %v", got.header, want)
	}
	// Values share an array: adding to one must not write into the next.
	got.header.Add("Date", "later")
	if got.header.Get("Server") != "uvicorn" {
		t.Fatal("adding a value changed another header")
	}
}

// Nobody looks at the header of a 200 that was asked for without one: it is
// checked all the same, and any other answer has its own.
func TestAnswerWithoutItsHeader(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, head string
		header     bool
		err        error
	}{
		{"200", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-A: 1\r\n\r\n", false, nil},
		{"another status", "HTTP/1.1 503 No\r\nContent-Length: 2\r\nX-A: 1\r\n\r\n", true, nil},
		{"a bad line", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX A: 1\r\n\r\n", false, errName},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			h := head{bare: true}
			for range 2 { // an interim answer may have come before
				if err := h.parse([]byte(tc.head)); !errors.Is(err, tc.err) {
					t.Fatal(err)
				}
			}
			if tc.err == nil && (h.length != 2 || tc.header != (h.header.Get("X-A") == "1")) {
				t.Fatalf("%+v", h)
			}
		})
	}
}
