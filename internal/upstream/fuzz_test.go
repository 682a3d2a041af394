package upstream

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"slices"
	"testing"
)

// cutReader gives its bytes in pieces of a few sizes, as a network does.
type cutReader struct {
	rest []byte
	size int
}

func (r *cutReader) Read(p []byte) (int, error) {
	if len(r.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p, r.rest[:min(len(r.rest), r.size)])
	r.rest = r.rest[n:]
	r.size = r.size*3%17 + 1
	return n, nil
}

// FuzzResponse feeds the reader of answers anything. What it takes, net/http
// takes as well, and both read the same; how the bytes are cut changes nothing.
func FuzzResponse(f *testing.F) {
	for _, s := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nX-a: b\r\n\r\nabc",
		"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcHTTP/1.1 200 OK\r\n\r\n",
		chunkedHead + "3;x\r\nabc\r\n0a\r\n0123456789\r\n0\r\nX-Sum: 1\r\n\r\nmore",
		"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\nconnection: close, x\r\n\r\n",
		"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n\r\nuntil the end",
		"HTTP/1.1 200\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n0\r\n\r\n",
		"HTTP/1.1 304 x\r\nset-cookie: a\r\nSet-Cookie: b\r\nContent-Length: 9\r\n\r\n",
	} {
		f.Add([]byte(s), uint8(1), false)
		f.Add([]byte(s), uint8(9), true)
	}
	f.Fuzz(func(t *testing.T, in []byte, cut uint8, isHead bool) {
		method := http.MethodGet
		if isHead {
			method = http.MethodHead
		}
		ours := read(t, method, bytes.NewReader(in), 1<<10)
		pieces := read(t, method, &cutReader{rest: slices.Clone(in), size: int(cut%17) + 1}, int(cut)+1)
		if (ours.err == nil) != (pieces.err == nil) || ours.status != pieces.status || (ours.err == nil && ours.body != pieces.body) {
			t.Fatalf("cut by %d it differs\n%+v\n%+v", cut, ours, pieces)
		}
		if !ours.head {
			return
		}
		theirs, body, err := standard(method, in)
		if theirs == nil {
			t.Fatalf("we took a head that net/http refuses: %v", err)
		}
		if ours.err == nil && err != nil {
			t.Fatalf("we took a body that net/http refuses: %v", err)
		}
		if theirs.StatusCode != ours.status {
			t.Fatalf("status %d, net/http says %d", ours.status, theirs.StatusCode)
		}
		if ours.err == nil && string(body) != ours.body {
			t.Fatalf("body %q, net/http says %q", ours.body, body)
		}
		if ours.length >= 0 && int64(len(ours.body)) > ours.length {
			t.Fatalf("%d bytes of %d", len(ours.body), ours.length)
		}
		for _, name := range []string{"Trailer", "Connection"} { // net/http takes them out
			theirs.Header.Del(name)
			ours.header.Del(name)
		}
		if len(theirs.Header) != len(ours.header) {
			t.Fatalf("header %v, net/http says %v", ours.header, theirs.Header)
		}
		for name, values := range ours.header {
			if !slices.Equal(values, theirs.Header[name]) {
				t.Fatalf("header %s: %q, net/http says %q", name, values, theirs.Header[name])
			}
		}
	})
}

// standard reads an answer with net/http, interim ones skipped.
func standard(method string, in []byte) (*http.Response, []byte, error) {
	r := bufio.NewReader(bytes.NewReader(in))
	for {
		resp, err := http.ReadResponse(r, &http.Request{Method: method})
		if err != nil {
			return nil, nil, err
		}
		if resp.StatusCode < 200 {
			continue
		}
		b, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		return resp, b, err
	}
}
