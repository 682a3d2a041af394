package http1

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"net/http/httputil"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzHead parses the head of an answer. If it is accepted, net/http
// accepts it, too, with the same status, fields and end.
func FuzzHead(f *testing.F) {
	for _, seed := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nX-a: b\r\n\r\nabc",
		"HTTP/1.1 200\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n0\r\n\r\n",
		"HTTP/1.0 304 x\r\nset-cookie: a\r\nSet-Cookie: b\r\nConnection: keep-alive\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chun\u212aed\r\n\r\n",
		"HTTP/1.1 200 OK\nX: a\r\n b\r\n\r\n", "\r\n\r\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		n, err := HeadLen(data, 0)
		if n == 0 || err != nil {
			return
		}
		start, fields := SplitHead(data[:n])
		status, http10, err := ParseStatusLine(start)
		if err != nil {
			return
		}
		head, _, err := parseFields(fields, http10)
		if err != nil {
			return
		}
		src := bytes.NewReader(data)
		r := bufio.NewReader(src)
		theirs, err := http.ReadResponse(r, &http.Request{Method: http.MethodHead})
		if err != nil {
			t.Fatalf("net/http refuses %q: %v", data[:n], err)
		}
		_ = theirs.Body.Close()
		require.Equal(t, n, len(data)-src.Len()-r.Buffered(), "bytes of the head")
		chunked := len(theirs.TransferEncoding) == 1
		if theirs.StatusCode != status || theirs.ProtoAtLeast(1, 1) == http10 || chunked != head.Chunked ||
			theirs.ContentLength != head.Length && status >= 200 && status != 204 {
			t.Fatalf("%d, %+v, net/http says %+v", status, head, theirs)
		}
		for _, name := range []string{"Trailer", "Connection", "Content-Length"} { // net/http removes some of them
			theirs.Header.Del(name)
			delete(head.Header, name)
		}
		require.Equal(t, len(head.Header), len(theirs.Header),
			"header %q, net/http says %q", head.Header, theirs.Header)
		for name, values := range head.Header {
			require.Equal(t, theirs.Header[name], values, "%s in net/http", name)
		}
	})
}

// FuzzChunks decodes a chunked body, however it is split. If it is
// accepted, net/http accepts it, too, and reads the same bytes.
func FuzzChunks(f *testing.F) {
	f.Add([]byte("3\r\nabc\r\n0\r\n\r\nmore"), uint16(1))
	f.Add([]byte("3;x=\"y\"\r\nabc\r\n0a\r\n0123456789\r\n0\r\nX-Sum: 1\r\n\r\n"), uint16(7))
	f.Add([]byte("fffffffffffffffff0\r\nabc\r\n0\r\n\r\n"), uint16(2))
	f.Add([]byte("3 \r\nabc\n0\r\n\r\n"), uint16(100))
	f.Fuzz(func(t *testing.T, data []byte, cut uint16) {
		body, rest, err := decode(string(data), len(data)+1)
		pieces, left, piecesErr := decode(string(data), int(cut)+1)
		if body != pieces || err != piecesErr || err == nil && rest != left {
			t.Fatalf("%q, %v, %d are left; by %d %q, %v, %d", body, err, rest, int(cut)+1, pieces, piecesErr, left)
		}
		if err != nil {
			return
		}
		theirs, err := io.ReadAll(httputil.NewChunkedReader(bytes.NewReader(data)))
		require.NoError(t, err, "net/http says")
		require.Equal(t, body, string(theirs), "net/http says")
	})
}
