package upstream

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// cutReader returns its bytes in pieces of a few sizes, like a network.
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

// FuzzResponse parses any bytes as an answer. If they are accepted, net/http accepts them, too, and
// reads the same, however the bytes are split. The connection is reusable only if net/http has read
// exactly to the end of the answer: later bytes must not become another client's answer.
func FuzzResponse(f *testing.F) {
	for _, s := range responseSeeds() {
		f.Add([]byte(s), uint8(1), false)
		f.Add([]byte(s), uint8(12), false)
		f.Add([]byte(s), uint8(9), true)
	}
	f.Fuzz(checkResponse)
}

func responseSeeds() []string {
	return []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nX-a: b\r\n\r\nabc",
		"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcHTTP/1.1 200 OK\r\n\r\n",
		chunkedHead + "3;x\r\nabc\r\n0a\r\n0123456789\r\n0\r\nX-Sum: 1\r\n\r\nmore",
		chunkedHead + "3\r\nabc\r\n0\r\n\r\n" + chunkedHead + "1\r\nx\r\n0\r\n\r\n",
		"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\nconnection: close, x\r\n\r\n",
		"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n\r\nuntil the end",
		"HTTP/1.1 200\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n0\r\n\r\n",
		"HTTP/1.1 304 x\r\nset-cookie: a\r\nSet-Cookie: b\r\nContent-Length: 9\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 5\r\n\r\nabcde",
		chunkedHead + "fffffffffffffffff0\r\nabc\r\n0\r\n\r\n", chunkedHead + "10000000000000003\r\nabc\r\n0\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx",
	}
}

// TestResponseNeighbours removes and doubles each byte of every seed, and puts bytes with a meaning
// for the framing in its place and before it. A fuzzer would find these changes only by chance.
func TestResponseNeighbours(t *testing.T) {
	t.Parallel()
	for _, s := range responseSeeds() {
		for i := range len(s) {
			checkResponse(t, []byte(s[:i]+s[i+1:]), uint8(i), false)
			checkResponse(t, []byte(s[:i]+s[i:i+1]+s[i:]), uint8(i), false)
			for _, c := range "\r\n \t\x00:;,0+" {
				checkResponse(t, []byte(s[:i]+string(c)+s[i+1:]), uint8(i), false)
				checkResponse(t, []byte(s[:i]+string(c)+s[i:]), uint8(i), false)
			}
		}
	}
}

// checkResponse checks the properties of FuzzResponse.
func checkResponse(t *testing.T, in []byte, cut uint8, isHead bool) {
	t.Helper()
	method := http.MethodGet
	if isHead {
		method = http.MethodHead
	}
	at := bytes.NewReader(in)
	ours := read(t, method, at, 1<<10)
	taken := len(in) - at.Len()
	cutAt := &cutReader{rest: slices.Clone(in), size: int(cut%17) + 1}
	size := int(cut) + 1
	if cut%2 == 0 {
		size += minDirectRead // past the buffer, into the caller's slice
	}
	pieces := read(t, method, cutAt, size)
	if (ours.err == nil) != (pieces.err == nil) || ours.status != pieces.status || ours.head != pieces.head || ours.length != pieces.length ||
		(ours.err == nil && ours.body != pieces.body) {
		t.Fatalf("cut by %d it differs\n%+v\n%+v", cut, ours, pieces)
	}
	if !ours.head {
		return
	}
	theirs, body, end, err := standard(method, in)
	require.True(t, theirs != nil, "we took a head that net/http refuses: %v", err)
	require.False(t, ours.err == nil && err != nil, "we took a body that net/http refuses: %v", err)
	require.Equal(t, ours.status, theirs.StatusCode, "status of net/http")
	require.False(t, ours.err == nil && string(body) != ours.body, "body %q, net/http says %q", ours.body, body)
	require.False(t, ours.err != nil && !strings.HasPrefix(string(body), ours.body) && err == nil,
		"the beginning of a body %q, net/http says %q", ours.body, body)
	require.False(t, ours.length >= 0 && int64(len(ours.body)) > ours.length,
		"%d bytes of %d", len(ours.body), ours.length)
	require.False(t, ours.reusable && (ours.err != nil || theirs.Close || taken != end),
		"the connection is kept: %v, at byte %d; net/http is at %d, close is %v", ours.err, taken, end, theirs.Close)
	require.False(t, pieces.reusable && (pieces.err != nil || theirs.Close || len(in)-len(cutAt.rest) != end),
		"cut by %d, the connection is kept at byte %d; net/http is at %d", cut, len(in)-len(cutAt.rest), end)
	for _, name := range []string{"Trailer", "Connection"} { // net/http removes them
		theirs.Header.Del(name)
		ours.header.Del(name)
		pieces.header.Del(name)
	}
	theirs.Header.Del("Content-Length") // it is Response.Length here
	sameHeader(t, ours.header, theirs.Header)
	sameHeader(t, pieces.header, theirs.Header)
}

func sameHeader(t *testing.T, ours, theirs http.Header) {
	t.Helper()
	require.Equal(t, len(ours), len(theirs), "header %v, net/http says %v", ours, theirs)
	for name, values := range ours {
		require.Equal(t, theirs[name], values, "header %s in net/http", name)
	}
}

// standard reads an answer with net/http, without interim ones; end is its end in the input.
func standard(method string, in []byte) (resp *http.Response, body []byte, end int, err error) {
	src := bytes.NewReader(in)
	r := bufio.NewReader(src)
	for {
		resp, err = http.ReadResponse(r, &http.Request{Method: method})
		if err != nil {
			return nil, nil, 0, err
		}
		if resp.StatusCode < 200 {
			continue
		}
		body, err = io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		return resp, body, len(in) - src.Len() - r.Buffered(), err
	}
}

// FuzzRequest writes a request with arbitrary client-controlled values. It is refused, or
// net/http reads one request with the same method, body and headers, and no bytes after it.
func FuzzRequest(f *testing.F) {
	f.Add("POST", "/v1/completions", "X-A", "b", []byte(`{"a":1}`), uint8(3))
	f.Add("GET", "/v1/models/a b?x=%20", "Cookie", "a\r\nContent-Length: 5", []byte(nil), uint8(0))
	f.Add("POST", "/a\r\nHost: x", "Transfer-Encoding", "chunked", []byte("x"), uint8(1))
	f.Add("GET", "//a/../%2e?b#c", "content-length", "0", []byte("GET / HTTP/1.1\r\n\r\n"), uint8(0))
	f.Add("PUT", "/?a b", "Host", "other", []byte{}, uint8(0))
	f.Fuzz(func(t *testing.T, method, path, name, value string, body []byte, cut uint8) {
		at := min(int(cut), len(body))
		req := &Request{
			Instance: &instance.Instance{Key: instance.Key{Role: instance.Decode, Address: "10.0.0.1:8000"}},
			Method:   method, Path: path, Header: http.Header{name: {value, value}, "X-Last": {"1"}}, Body: [][]byte{body[:at], body[at:]},
		}
		head, err := appendHead(nil, req)
		if err != nil {
			require.ErrorIs(t, err, errBadRequest, "an error of another kind")
			return
		}
		whole := append(head, body...)
		src := bytes.NewReader(whole)
		r := bufio.NewReader(src)
		got, err := http.ReadRequest(r)
		require.NoError(t, err, "net/http refuses %q", whole)
		sent, err := io.ReadAll(got.Body)
		require.NoError(t, err, "%q: body %q", whole, sent)
		require.True(t, bytes.Equal(sent, body), "%q: body %q", whole, sent)
		left := src.Len() + r.Buffered()
		require.Equal(t, 0, left, "%d bytes of %q are another request", left, whole)
		if got.Method != method || got.Host != "10.0.0.1:8000" || got.Header.Get("X-Last") != "1" || len(got.TransferEncoding) > 0 {
			t.Fatalf("%q is read as %s to %s, %v", whole, got.Method, got.Host, got.Header)
		}
		want, query, _ := strings.Cut(path, "?")
		require.Equal(t, want, got.URL.Path, "%q is read as and", whole)
		require.Equal(t, query, got.URL.RawQuery, "%q is read as and", whole)
		for n, values := range got.Header {
			if n != "X-Last" && n != "Content-Length" && (!strings.EqualFold(n, name) || len(values) != 2 || values[0] != strings.Trim(value, " \t")) {
				t.Fatalf("%q has a header %s: %q", whole, n, values)
			}
		}
	})
}
