package framing_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/internal/framing"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// long is beyond anything that happens in a test that passes.
const long = 30 * time.Second

// serve starts net/http's server behind the check. It answers with the request's body;
// bodies tells of all it read.
func serve(t *testing.T) (address string, bodies func() []string) {
	t.Helper()
	var mu sync.Mutex
	var list []string
	srv := &http.Server{ReadHeaderTimeout: long, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		mu.Lock()
		list = append(list, fmt.Sprintf("%s %s %s", r.Method, r.RequestURI, b))
		mu.Unlock()
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		// The client must not be taken for gone because of what it sends ahead.
		select {
		case <-r.Context().Done():
			panic(http.ErrAbortHandler)
		case <-time.After(20 * time.Millisecond):
		}
		_, _ = w.Write(b)
	})}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(framing.Listener(ln)) }()
	t.Cleanup(func() { _ = srv.Close(); <-ended })
	return ln.Addr().String(), func() []string {
		mu.Lock()
		defer mu.Unlock()
		return append([]string(nil), list...)
	}
}

const (
	sized   = "POST /s HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\none"
	chunked = "POST /c HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: Chunked\r\n\r\n3\r\ntwo\r\n2;x=\"y\"\r\n+2\r\n0\r\nX-T: 1\r\n\r\n"
	none    = "GET /n HTTP/1.1\r\nHost: h\r\n\r\n"
)

func TestRequests(t *testing.T) {
	t.Parallel()
	head := func(lines ...string) string {
		return "POST /x HTTP/1.1\r\nHost: h\r\n" + strings.Join(lines, "\r\n") + "\r\n\r\n"
	}
	for _, tc := range []struct {
		name, text string
		refused    bool
	}{
		{"plain ones", sized + chunked + none + sized, false},
		{"after a line end", sized + "\r\n\r\n" + sized, false},
		{"line ends without a CR", strings.ReplaceAll(sized, "\r", ""), false},
		{"a long path", strings.Replace(chunked, "/c", "/c?"+strings.Repeat("x", 1000), 1), false},
		{"a long line", head("X: "+strings.Repeat("x", 9000), "Content-Length: 1") + "x", false},
		{"HTTP/1.0 with a length", "POST /o HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 3\r\n\r\none", false},
		{"a value like a name", head("X: Content-Length", "X-Content-Length: 7", "Content-Length: 1") + "x", false},

		{"a length and chunks", head("Content-Length: 3", "Transfer-Encoding: chunked") + "0\r\n\r\n", true},
		{"chunks and a length", head("Transfer-Encoding: chunked", "Content-Length: 3") + "0\r\n\r\n", true},
		{"the same in small letters", head("content-length:3", "transfer-encoding:chunked") + "0\r\n\r\n", true},
		{"two equal lengths", head("Content-Length: 3", "Content-Length: 3") + "one", true},
		{"two lengths", head("Content-Length: 3", "Content-Length: 4") + "four", true},
		{"a list of lengths", head("Content-Length: 3, 3") + "one", true},
		{"a signed length", head("Content-Length: +3") + "one", true},
		{"no number", head("Content-Length: ") + "", true},
		{"a length behind many blanks", head("Content-Length: "+strings.Repeat(" ", 500)+"3") + "one", true},
		{"a length of many digits", head("Content-Length: "+strings.Repeat("0", 500)+"3") + "one", true},
		{"an encoding behind many blanks", head("Transfer-Encoding: "+strings.Repeat(" ", 500)+"chunked") + "0\r\n\r\n", true},
		{"a folded line", head("X: a", " b", "Content-Length: 3") + "one", true},
		{"a folded line, by a tab", head("X: a", "\tb", "Content-Length: 3") + "one", true},
		{"a folded length", head("Content-Length:", " 3") + "one", true},
		{"a folded line of a blank", head("X: a", " ", "Content-Length: 3") + "one", true},
		{"chunks in HTTP/1.0", "POST /o HTTP/1.0\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n0\r\n\r\n", true},
		{"chunks in HTTP/1.0 behind a long path", "POST /o?" + strings.Repeat("x", 500) + " HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", true},
		{"two encodings", head("Transfer-Encoding: chunked", "Transfer-Encoding: chunked") + "0\r\n\r\n", true},
	} {
		for _, before := range []string{"", sized, chunked, none} {
			for _, cut := range []int{0, 1, 7} { // bytes at a time, 0: all
				t.Run(fmt.Sprintf("%s/behind %d/by %d", tc.name, len(before), cut), func(t *testing.T) {
					t.Parallel()
					address, bodies := serve(t)
					c, err := net.Dial("tcp", address)
					if err != nil {
						t.Fatal(err)
					}
					defer func() { _ = c.Close() }()
					_ = c.SetDeadline(time.Now().Add(long))
					rest := before + tc.text
					if !tc.refused {
						rest += none
					}
					want := strings.Count(rest, " HTTP/1.")
					go func() {
						for len(rest) > 0 {
							n := len(rest)
							if cut > 0 {
								n = min(cut, n)
							}
							if _, err := io.WriteString(c, rest[:n]); err != nil {
								return
							}
							rest = rest[n:]
						}
					}()
					var last *http.Response
					in := bufio.NewReader(c)
					for range want {
						if last, err = http.ReadResponse(in, nil); err != nil {
							t.Fatalf("%v, read %q", err, bodies())
						}
						if _, err = io.Copy(io.Discard, last.Body); err != nil {
							t.Fatal(err)
						}
					}
					if !tc.refused {
						if got := bodies(); len(got) != want || last.StatusCode != http.StatusOK || got[want-1] != "GET /n " {
							t.Fatalf("%s, read %q", last.Status, got)
						}
						return
					}
					if _, err := in.ReadByte(); last.StatusCode != http.StatusBadRequest || !last.Close || err == nil || os.IsTimeout(err) {
						t.Fatalf("%s, closes: %v, %v", last.Status, last.Close, err)
					}
					if got := bodies(); len(got) != want-1 {
						t.Fatalf("read %q", got)
					}
				})
			}
		}
	}
}
