package front

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// readSize bounds the bytes of a request here: the buffer of a first read.
const readSize = 4 << 10

// A request that this server takes, net/http reads in the same way: it has the same
// header and a body of the same length, so that both see the next request begin at
// the same byte.
func FuzzRequest(f *testing.F) {
	for _, seed := range []string{
		"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nxyPOST",
		"POST /a HTTP/1.1\r\nhost: h\r\ncontent-length: 0\r\nConnection: close\r\nX-Y: \t z \r\nx-y:\r\n\r\n",
		"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n",
		"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 02\r\nX: a\r\n b\r\n\r\nxy",
		"POST /a HTTP/1.1\r\nHost: h\nContent-Length: 2\r\n\r\nxy",
		"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx",
	} {
		f.Add([]byte(seed))
	}
	s := &Server{routes: map[string]*route{"/a": newRoute("/a", nil)}}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > readSize {
			return
		}
		// The connection has served another request, of which nothing may be left.
		c := &conn{server: s, ctx: t.Context(), request: &http.Request{Method: http.MethodPost, Header: http.Header{"X-Old": {"1"}}, Host: "old", Close: true}}
		c.body.c, c.body.remaining = c, 5
		c.buf.Add(copy(c.buf.Free(), data))
		to, err := c.parse()
		if err != nil {
			if !bytes.Equal(c.buf.Bytes(), data) {
				t.Fatal("bytes were taken from what another server has to read")
			}
			return
		}
		in := bytes.NewReader(data)
		want, err := http.ReadRequest(bufio.NewReaderSize(in, 16))
		if err != nil {
			t.Fatalf("net/http refuses it: %v", err)
		}
		got := c.request
		if to.path != want.URL.Path || got.Host != want.Host || got.ContentLength != want.ContentLength || got.Close != want.Close {
			t.Fatalf("got %+v\nwant %+v", got, want)
		}
		want.Header.Del("Content-Length")
		if want.Header.Get("Pragma") != "" { // for which net/http makes up a Cache-Control
			want.Header.Del("Cache-Control")
			got.Header.Del("Cache-Control")
		}
		if len(got.Header) != len(want.Header) {
			t.Fatalf("got %q\nwant %q", got.Header, want.Header)
		}
		for name, values := range want.Header {
			if !slices.Equal(values, got.Header[name]) {
				t.Fatalf("%s: got %q, want %q", name, got.Header[name], values)
			}
		}
		have := min(got.ContentLength, int64(len(c.buf.Bytes())))
		body, _ := io.ReadAll(io.LimitReader(got.Body, have))
		wantBody, _ := io.ReadAll(io.LimitReader(want.Body, have))
		if !bytes.Equal(body, wantBody) {
			t.Fatalf("body %q, want %q", body, wantBody)
		}
	})
}

// A request is read in the same way whatever request came before it on its connection.
func FuzzRequestAfterAnother(f *testing.F) {
	const head = "POST /a HTTP/1.1\r\nHost: h\r\nX-A: 1\r\nContent-Length: 2\r\n"
	for _, seed := range [][2]string{
		{head + "\r\nxy", head + "\r\nxy"},
		{head + "\r\nxy", "POST /b HTTP/1.1" + head[16:] + "\r\nxy"},
		{head + "\r\nxy", strings.Replace(head, ": 2", ": 1234", 1) + "\r\nxy"},
		{head + "\r\nxy", strings.Replace(head, ": 2", ": 0", 1) + "\r\n"},
		{head + "\r\nxy", strings.Replace(head, ": 2", ": ", 1) + "\r\nxy"},
		{head + "\r\nxy", strings.Replace(head, ": 2", ": 9999999999999999999", 1) + "\r\nxy"},
		{head + "\r\nxy", head + "Transfer-Encoding: chunked\r\n\r\nxy"},
		{head + "Connection: close\r\n\r\nxy", head + "\r\nxy"},
		{head + "Transfer-Encoding: chunked\r\n\r\nxy", head + "\r\nxy"},
		{head + "X-B: \t b \r\n\r\nxy", head + "X-B: b\r\n\r\nxy"},
		{head + "\r\nxy", head},
	} {
		f.Add([]byte(seed[0]), []byte(seed[1]))
	}
	s := &Server{routes: map[string]*route{"/a": newRoute("/a", nil), "/b": newRoute("/b", nil)}}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		if len(first) > readSize || len(second) > readSize {
			return
		}
		fresh, used := parser(s), parser(s)
		// The first request may have failed. No second one follows a close.
		if _, err := used.parseOf(first); err == nil && used.request.Close {
			return
		}
		want, wantErr := fresh.parseOf(second)
		got, err := used.parseOf(second)
		if got != want || (err == nil) != (wantErr == nil) || !bytes.Equal(used.buf.Bytes(), fresh.buf.Bytes()) {
			t.Fatalf("%v, %v, %q is left; after nothing %v, %v, %q", got, err, used.buf.Bytes(), want, wantErr, fresh.buf.Bytes())
		}
		if err != nil {
			return
		}
		a, b := used.request, fresh.request
		if a.URL != b.URL || a.RequestURI != b.RequestURI || a.Host != b.Host || a.ContentLength != b.ContentLength || a.Close != b.Close ||
			(a.Body == http.NoBody) != (b.Body == http.NoBody) || used.body.remaining != fresh.body.remaining || !reflect.DeepEqual(a.Header, b.Header) {
			t.Fatalf("got %+v\nafter nothing %+v", a, b)
		}
	})
}

func parser(s *Server) *conn {
	c := &conn{server: s, ctx: context.Background(), request: &http.Request{Method: http.MethodPost, Header: http.Header{}}}
	c.body.c, c.response.c = c, c
	return c
}

// parseOf parses data as the bytes that were read.
func (c *conn) parseOf(data []byte) (*route, error) {
	c.buf.Release()
	c.buf.Add(copy(c.buf.Free(), data))
	return c.parse()
}
