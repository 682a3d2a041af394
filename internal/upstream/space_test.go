package upstream

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// Memory that is lent again and again holds the last answer only, and lines that are
// kept are those of the header they were made of.
func TestSpaceAndLinesAreUsedAgain(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, _ := strconv.Atoi(r.Header.Get("X-Number"))
		for i := range n % 20 { // more than there is room for, too
			w.Header().Set("X-"+strconv.Itoa(n)+"-"+strconv.Itoa(i), "v")
		}
		w.Header().Set("X-Same", strconv.Itoa(n))
		w.Header().Add("X-Twice", "a")
		w.Header().Add("X-Twice", "b")
		_, _ = io.WriteString(w, r.Header.Get("X-Number"))
	}))
	defer s.Close()
	in := &instance.Instance{Key: instance.Key{Role: instance.Decode, Address: s.Listener.Addr().String()}}
	p := NewPool(Options{})
	defer p.Close()
	var space Space
	var lines Lines
	for n := range 40 {
		header := http.Header{"X-Number": {strconv.Itoa(n)}}
		lines.Clear()
		for range 2 { // the second with the lines of the first
			resp, err := p.Do(t.Context(), &Request{Instance: in, Method: http.MethodPost, Path: "/", Header: header, Space: &space, Lines: &lines})
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(resp.Body)
			if err != nil || string(b) != strconv.Itoa(n) || resp.Header.Get("X-Same") != string(b) {
				t.Fatalf("request %d: %q, %v, %v", n, b, resp.Header, err)
			}
			if want := n%20 + 4; len(resp.Header) != want { // and Content-Type, Date
				t.Fatalf("request %d: %d names, want %d: %v", n, len(resp.Header), want, resp.Header)
			}
			if twice := resp.Header["X-Twice"]; len(twice) != 2 || twice[0] != "a" || twice[1] != "b" {
				t.Fatalf("request %d: %v", n, twice)
			}
			_ = resp.Body.Close()
			space.Clear()
			if len(space.header) != 0 || space.answer.Header != nil {
				t.Fatal("something is left")
			}
			header = http.Header{"X-Number": {"not looked at"}}
		}
	}
	if held := lines.Clear(); held < len("X-Number: 39\r\n") {
		t.Errorf("%d bytes are kept", held)
	}
}

// A header that cannot be sent leaves no lines behind.
func TestBadHeaderKeepsNoLines(t *testing.T) {
	t.Parallel()
	in := &instance.Instance{Key: instance.Key{Role: instance.Decode, Address: "127.0.0.1:1"}}
	var lines Lines
	r := Request{Instance: in, Method: http.MethodPost, Path: "/", Header: http.Header{"X-A": {"a\nb"}}, Lines: &lines}
	for range 2 {
		if _, err := appendHead(nil, &r); err == nil {
			t.Fatal("it was taken")
		}
	}
}
