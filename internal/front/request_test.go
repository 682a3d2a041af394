package front_test

import (
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/internal/framing"
)

// A handler sees the same request from both servers. Both refuse a broken one, also
// where net/http without framing would take it.
func TestRequests(t *testing.T) {
	t.Parallel()
	s := start(t, map[string]http.HandlerFunc{"/a": echo, "/b/c": echo})
	oracle := &http.Server{Handler: http.HandlerFunc(echo), ReadHeaderTimeout: long}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = oracle.Serve(framing.Listener(ln)) }()
	t.Cleanup(func() { _ = oracle.Close() })
	std := &testServer{t: t, address: ln.Addr().String()}

	const length = "Host: h\r\nContent-Length: 2\r\n"
	for _, tc := range []struct {
		name, text string
		own        bool
	}{
		{"plain", post("/a", `{"x":1}`), true},
		{"the other route", post("/b/c", "x"), true},
		{"no body", post("/a", ""), true},
		{"fields", post("/a", "x", "content-TYPE: application/json", "X-y:  two words\t ", "AUTHORIZATION:Bearer k", "x-empty:", "Accept: a", "accept: b"), true},
		{"kept", post("/a", "x", "Connection: Keep-Alive"), true},
		{"closed", post("/a", "x", "Connection: close"), true},
		{"bytes beyond ASCII", post("/a", "\xc3\xa9\x00", "X-Name: \xc3\xa9"), true},
		{"body larger than a buffer", post("/a", strings.Repeat("0123456789", 20_000)), true},
		{"address as host", "POST /a HTTP/1.1\r\nHost: [::1]:80\r\nContent-Length: 1\r\n\r\nx", true},

		{"another method", "GET /a HTTP/1.1\r\nHost: h\r\n\r\n", false},
		{"another path", post("/a/", "x"), false},
		{"a query", post("/a?x=1", "x"), false},
		{"a whole URL", post("http://h/a", "x"), false},
		{"HTTP/1.0", "POST /a HTTP/1.0\r\n" + length + "\r\nxy", false},
		{"chunks", "POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nxy\r\n0\r\n\r\n", false},
		{"chunks and a length", "POST /a HTTP/1.1\r\n" + length + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", false},
		{"no length", "POST /a HTTP/1.1\r\nHost: h\r\n\r\n", false},
		{"two equal lengths", "POST /a HTTP/1.1\r\n" + length + "Content-Length: 2\r\n\r\nxy", false},
		{"two lengths", "POST /a HTTP/1.1\r\n" + length + "Content-Length: 3\r\n\r\nxyz", false},
		{"a signed length", "POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: +2\r\n\r\nxy", false},
		{"a list of lengths", "POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 2, 2\r\n\r\nxy", false},
		{"a huge length", "POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999999999999999\r\n\r\nxy", false},
		{"asks before it sends", post("/a", "xy", "Expect: 100-continue"), false},
		{"asks for an upgrade", post("/a", "xy", "Connection: Upgrade", "Upgrade: h2c"), false},
		{"several options", post("/a", "xy", "Connection: close, x-y"), false},
		{"trailers wanted", post("/a", "xy", "TE: trailers"), false},
		{"no host", "POST /a HTTP/1.1\r\nContent-Length: 2\r\n\r\nxy", false},
		{"two hosts", "POST /a HTTP/1.1\r\n" + length + "Host: i\r\n\r\nxy", false},
		{"an odd host", "POST /a HTTP/1.1\r\nHost: h/x\r\nContent-Length: 2\r\n\r\nxy", false},
		{"a folded line", "POST /a HTTP/1.1\r\n" + length + "X: a\r\n b\r\n\r\nxy", false},
		{"a bare LF", "POST /a HTTP/1.1\r\nHost: h\nContent-Length: 2\r\n\r\nxy", false},
		{"a bare LF at the end", "POST /a HTTP/1.1\n" + length + "\n\nxy", false},
		{"a bare CR", "POST /a HTTP/1.1\r\n" + length + "X: a\rb\r\n\r\nxy", false},
		{"a zero byte", "POST /a HTTP/1.1\r\n" + length + "X: a\x00b\r\n\r\nxy", false},
		{"a blank before the colon", "POST /a HTTP/1.1\r\nHost: h\r\nContent-Length : 2\r\n\r\nxy", false},
		{"no colon", "POST /a HTTP/1.1\r\n" + length + "nonsense\r\n\r\nxy", false},
		{"no name", "POST /a HTTP/1.1\r\n" + length + ": x\r\n\r\nxy", false},
		{"many fields", post("/a", "xy", manyFields(200)...), true},
		{"too many fields", post("/a", "xy", manyFields(254)...), false}, // and two more
		{"a long head", post("/a", "xy", "X: "+strings.Repeat("x", 5000)), false},
		{"a head in pieces", post("/a", "xy")[:20] + "\x00" + post("/a", "xy")[20:], false}, // the zero byte is a pause
		{"nonsense", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello\r\n\r\n", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			first, rest, paused := strings.Cut(tc.text, "\x00")
			if tc.name != "a head in pieces" {
				first, paused = tc.text, false
			}
			ask := func(s *testServer) (*http.Response, string) {
				w := s.dial()
				w.t = t
				w.send(first)
				if paused {
					// The pause is long enough for a read of the first piece
					// alone. If it is not, the outcome is the same.
					_ = w.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
					_, _ = w.in.Peek(1)
					_ = w.SetReadDeadline(time.Now().Add(long))
					w.send(rest)
				}
				resp, body, broken := w.answer()
				if broken != nil {
					t.Fatalf("the answer broke off: %v", broken)
				}
				return resp, body
			}
			got, body := ask(s)
			want, wantBody := ask(std)
			if tc.name == "another path" { // which only the oracle serves
				want.StatusCode, wantBody = 404, "404 page not found\n"
			}
			if got.StatusCode != want.StatusCode || body != wantBody {
				t.Fatalf("got %d %.300q\nwant %d %.300q", got.StatusCode, body, want.StatusCode, wantBody)
			}
			switch tc.name {
			case "chunks and a length", "two equal lengths", "a folded line":
				if got.StatusCode != http.StatusBadRequest || !got.Close {
					t.Errorf("status %d, the connection ends: %v", got.StatusCode, got.Close)
				}
			}
			if own := got.StatusCode == 200 && got.Header.Get("X-By") == ""; own != tc.own && !paused {
				t.Errorf("answered by our own server: %v", own)
			}
			if got.Close != want.Close {
				t.Errorf("the connection ends: %v, by net/http: %v", got.Close, want.Close)
			}
		})
	}
}

func manyFields(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = "X-Y: z"
	}
	return out
}

// Requests follow each other on a connection, sent ahead or not, and answered by
// either server.
func TestOneConnection(t *testing.T) {
	t.Parallel()
	s := start(t, map[string]http.HandlerFunc{"/a": echo})
	ask := []string{post("/a", "1"), post("/a", strings.Repeat("2", 9000)), post("/a", "3"), "GET /a HTTP/1.1\r\nHost: h\r\n\r\n", post("/a", "5")}
	for _, ahead := range []bool{false, true} {
		w := s.dial()
		if ahead {
			go func() { _, _ = w.Write([]byte(strings.Join(ask, ""))) }()
		}
		for i, text := range ask {
			if !ahead {
				w.send(text)
			}
			resp, body, err := w.answer()
			want := text[strings.Index(text, "\r\n\r\n")+4:]
			if err != nil || resp.StatusCode != 200 || !strings.HasSuffix(body, "\n"+want) {
				t.Fatalf("ahead %v, request %d: %v %d %.100q", ahead, i, err, resp.StatusCode, body)
			}
			if by := resp.Header.Get("X-By"); (by == "rest") != (i >= 3) && !ahead {
				t.Errorf("request %d was answered by %q", i, by)
			}
		}
	}
}
