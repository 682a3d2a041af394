package upstream

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// headsOf reads heads, one behind the other, on one connection.
func headsOf(t testing.TB, bare []bool, heads ...string) (c *conn, got []head, err error) {
	t.Helper()
	// Each head comes in a read of its own, as an answer does.
	pieces := make([]io.Reader, len(heads))
	for i, s := range heads {
		pieces[i] = strings.NewReader(s)
	}
	c = &conn{in: io.MultiReader(pieces...)}
	for i := range heads {
		h := head{bare: bare[i%len(bare)], space: new(Space)}
		if err = c.readHead(&h); err != nil {
			return c, got, err
		}
		got = append(got, h)
		c.take(0)
	}
	return c, got, nil
}

// sameHead compares what was read by two connections.
func sameHead(t testing.TB, what string, got, want head) {
	t.Helper()
	if got.status != want.status || got.old != want.old || got.length != want.length || got.chunked != want.chunked ||
		got.close != want.close || got.keep != want.keep || fmt.Sprint(got.header) != fmt.Sprint(want.header) {
		t.Fatalf("%s: %+v, want %+v", what, got, want)
	}
}

const usualHead = "HTTP/1.1 200 OK\r\ndate: Tue, 24 Nov 2026 06:00:00 GMT\r\nserver: uvicorn\r\ncontent-length: 12\r\ncontent-type: application/json\r\n\r\n"

// What an engine repeats is not read again: the third answer with the same head has
// the header, and what was made of it, of the second.
func TestKnownHead(t *testing.T) {
	t.Parallel()
	long := strings.Replace(usualHead, "12\r", "345678\r", 1)
	later := strings.Replace(usualHead, "06:00:00", "06:00:01", 1)
	_, got, err := headsOf(t, []bool{false}, usualHead, long, usualHead, long, later, later, later, usualHead)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []int64{12, 345678, 12, 345678, 12, 12, 12, 12} {
		date := "Tue, 24 Nov 2026 06:00:00 GMT"
		if i >= 4 && i < 7 {
			date = "Tue, 24 Nov 2026 06:00:01 GMT"
		}
		h := got[i].header
		if got[i].length != want || h.Get("Date") != date || h.Get("Server") != "uvicorn" || h.Get("Content-Type") != "application/json" || len(h) != 3 {
			t.Errorf("answer %d: %d, %v", i, got[i].length, h)
		}
	}
	if got[0].memo != nil || got[4].memo != nil || got[7].memo != nil {
		t.Error("what came once is kept")
	}
	got[1].memo.Store("made of it")
	for i, of := range []any{1: "made of it", 2: "made of it", 3: "made of it", 5: nil, 6: nil} {
		if i != 0 && i != 4 && got[i].memo.Load() != of {
			t.Errorf("answer %d: the memo is %v", i, got[i].memo.Load())
		}
	}
	if got[5].memo == nil || got[5].memo != got[6].memo || got[5].memo == got[3].memo {
		t.Error("a memo does not go with its header")
	}
}

// A prefill's answer is read without its header, and a connection that has such heads
// only must not give them to who wants one.
func TestKnownHeadWithoutHeader(t *testing.T) {
	t.Parallel()
	_, got, err := headsOf(t, []bool{true, true, true, false, false, true, false}, slices.Repeat([]string{usualHead}, 7)...)
	if err != nil {
		t.Fatal(err)
	}
	for i, bare := range []bool{true, true, true, false, false, true, false} {
		if got[i].length != 12 || !bare && got[i].header.Get("Server") != "uvicorn" {
			t.Errorf("answer %d: %+v", i, got[i])
		}
	}
}

// knownSeeds are heads to be known, and what may follow them.
func knownSeeds() []string {
	return []string{
		usualHead, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", chunkedHead,
		"HTTP/1.1 200 OK\r\ncontent-length: \t3 \r\nX: 1\r\nX: 2\r\n\r\n",
		"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\n",
		"HTTP/1.1 200 OK\r\nX: Content-Length: 5\r\nContent-Length: 7\r\n\r\n",
		"HTTP/1.1 404 No\r\nContent-Length: 7\r\n\r\n", "HTTP/1.1 204 No\r\n\r\n", "HTTP/1.1 200\r\n\r\n",
	}
}

// FuzzKnownHead reads a head on a connection that knows another, or the same, as one
// without a past reads it.
func FuzzKnownHead(f *testing.F) {
	for _, a := range knownSeeds() {
		for _, b := range knownSeeds() {
			f.Add([]byte(a), []byte(b), false)
		}
		f.Add([]byte(a), []byte(a), true)
	}
	f.Fuzz(checkKnownHead)
}

func checkKnownHead(t *testing.T, first, second []byte, bare bool) {
	t.Helper()
	alone, fresh, freshErr := headsOf(t, []bool{bare}, string(second))
	if c, _, err := headsOf(t, []bool{bare}, string(first)); err != nil || len(c.buffered()) > 0 {
		return // it is not one head
	}
	c, got, err := headsOf(t, []bool{bare, false, bare}, string(first), string(first), string(first), string(second))
	if (err == nil) != (freshErr == nil) {
		t.Fatalf("behind %q, %q gives %v, on a fresh connection %v", first, second, err, freshErr)
	}
	if err != nil {
		return
	}
	if bare && got[3].status == http.StatusOK {
		got[3].header = nil // nobody looks at it
	}
	sameHead(t, fmt.Sprintf("%q behind %q", second, first), got[3], fresh[0])
	if !bytes.Equal(c.buffered(), alone.buffered()) {
		t.Fatalf("%q is left of %q, on a fresh connection %q", c.buffered(), second, alone.buffered())
	}
}

// TestKnownNeighbours has each byte of a head taken out, doubled, and replaced by what
// matters, behind the head as it was: the changes that a fuzzer comes upon by luck.
func TestKnownNeighbours(t *testing.T) {
	t.Parallel()
	for _, s := range knownSeeds() {
		for i := range len(s) {
			for _, next := range []string{s[:i] + s[i+1:], s[:i] + s[i:i+1] + s[i:]} {
				checkKnownHead(t, []byte(s), []byte(next), false)
			}
			for _, c := range "\r\n \t\x00:;,0+9C" {
				checkKnownHead(t, []byte(s), []byte(s[:i]+string(c)+s[i+1:]), i%2 == 0)
				checkKnownHead(t, []byte(s), []byte(s[:i]+string(c)+s[i:]), i%2 == 1)
			}
		}
	}
}

// A head that is always another one costs no memory for each, and a long one none.
func TestUnknownHeadsKeepNothing(t *testing.T) {
	t.Parallel()
	other := make([]string, 8)
	for i := range other {
		other[i] = strings.Replace(usualHead, "uvicorn", fmt.Sprintf("uvicorn\r\nx-request-id: %d", i), 1)
	}
	c, _, err := headsOf(t, []bool{false}, other...)
	if err != nil || c.known != nil {
		t.Fatalf("%v, knows %v", err, c.known)
	}
	long := strings.Replace(usualHead, "uvicorn", strings.Repeat("u", maxKnown), 1)
	c, _, err = headsOf(t, []bool{false}, long, long, long)
	if err != nil || c.known != nil || cap(c.last.text) > 0 {
		t.Fatalf("%v, knows %v, keeps %d bytes", err, c.known, cap(c.last.text))
	}
}
