package front_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/internal/front"
)

func TestAnswers(t *testing.T) {
	t.Parallel()
	big := strings.Repeat("0123456789abcdef", 40_000)
	for _, tc := range []struct {
		name    string
		handler http.HandlerFunc
		status  int
		body    string
		broken  bool
		closed  bool // the connection ends after it
	}{
		{"nothing", func(http.ResponseWriter, *http.Request) {}, 200, "", false, false},
		{"of a length", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "5")
			w.WriteHeader(418)
			_, _ = io.WriteString(w, "hello")
		}, 418, "hello", false, false},
		{"without a length", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }, 200, "hello", false, false},
		{"in pieces", func(w http.ResponseWriter, _ *http.Request) {
			for i := range 300 {
				_, _ = fmt.Fprintf(w, "%d;", i)
				if i%7 == 0 {
					w.(http.Flusher).Flush()
				}
			}
		}, 200, numbers(300), false, false},
		{"large, of a length", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", strconv.Itoa(len(big)))
			_, _ = io.WriteString(w, big[:10])
			_, _ = io.WriteString(w, big[10:])
		}, 200, big, false, false},
		{"large, without one", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, big[:10])
			_, _ = io.WriteString(w, big[10:])
		}, 200, big, false, false},
		{"no content", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusNoContent)
			if _, err := io.WriteString(w, "x"); !errors.Is(err, http.ErrBodyNotAllowed) {
				t.Errorf("a body of 204: %v", err)
			}
		}, 204, "", false, false},
		{"longer than announced", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "2")
			if _, err := io.WriteString(w, "abc"); !errors.Is(err, http.ErrContentLength) {
				t.Errorf("a body that is too long: %v", err)
			}
			_, _ = io.WriteString(w, "ab")
		}, 200, "ab", false, false},
		{"shorter than announced", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "3")
			_, _ = io.WriteString(w, "ab")
		}, 200, "ab", true, true},
		{"that ends the connection", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Connection", "close")
			_, _ = io.WriteString(w, "bye")
		}, 200, "bye", false, true},
		{"broken off", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "ab")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}, 200, "ab", true, true},
		{"with a bug", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "ab")
			w.(http.Flusher).Flush()
			panic("bug")
		}, 200, "ab", true, true},
		{"with line ends in a field", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-A", "b\r\nX-C: d")
			w.Header()["X: y\r\nZ"] = []string{"e"}
			_, _ = io.WriteString(w, "ok")
		}, 200, "ok", false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := start(t, map[string]http.HandlerFunc{"/x": tc.handler, "/a": echo})
			w := s.dial()
			w.send(post("/x", "body"))
			resp, body, broken := w.answer()
			if resp.StatusCode != tc.status || body != tc.body || (broken != nil) != tc.broken {
				t.Fatalf("%d %.100q %v", resp.StatusCode, body, broken)
			}
			if d, err := http.ParseTime(resp.Header.Get("Date")); err != nil || time.Since(d).Abs() > time.Hour {
				t.Errorf("Date %q", resp.Header.Get("Date"))
			}
			if resp.Header.Get("X-C") != "" || resp.Header.Get("Z") != "" {
				t.Errorf("a field was split: %v", resp.Header)
			}
			if tc.closed {
				if !w.closed() {
					t.Error("the connection is still there")
				}
				return
			}
			// The unread body was discarded, so the connection serves the next request.
			w.send(post("/a", "next"))
			if _, body, err := w.answer(); err != nil || !strings.HasSuffix(body, "next") {
				t.Fatalf("the next answer: %v %q", err, body)
			}
		})
	}
}

func numbers(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%d;", i)
	}
	return b.String()
}

// What is flushed arrives while the handler goes on.
func TestFlush(t *testing.T) {
	t.Parallel()
	var turn sync.WaitGroup
	turn.Add(1)
	s := start(t, map[string]http.HandlerFunc{"/x": func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "first")
		w.(http.Flusher).Flush()
		turn.Wait()
		_, _ = io.WriteString(w, "second")
	}})
	w := s.dial()
	w.send(post("/x", ""))
	resp, err := http.ReadResponse(w.in, nil)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 5)
	if _, err := io.ReadFull(resp.Body, b); err != nil || string(b) != "first" {
		t.Fatalf("%q %v", b, err)
	}
	turn.Done()
	if rest, err := io.ReadAll(resp.Body); err != nil || string(rest) != "second" {
		t.Fatalf("%q %v", rest, err)
	}
}

// A write deadline is for the request that set it. The next request on the connection
// is answered without it.
func TestWriteDeadlineEndsWithItsRequest(t *testing.T) {
	t.Parallel()
	s := start(t, map[string]http.HandlerFunc{"/a": echo, "/x": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "2")
		_, _ = io.WriteString(w, "ok")
		w.(http.Flusher).Flush()
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(-time.Second))
	}})
	w := s.dial()
	w.send(post("/x", ""))
	w.answer()
	w.send(post("/a", "next"))
	if _, body, err := w.answer(); err != nil || !strings.HasSuffix(body, "next") {
		t.Fatalf("%v %q", err, body)
	}
}

// The answer of a handler that has not read a large body arrives, and the rest of the
// body is not taken for a request.
func TestUnreadBody(t *testing.T) {
	t.Parallel()
	s := start(t, map[string]http.HandlerFunc{
		"/x": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Connection", "close")
			http.Error(w, "too large", http.StatusRequestEntityTooLarge)
		},
	})
	w := s.dial()
	w.send("POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 100000000\r\n\r\n" + strings.Repeat(post("/x", ""), 100))
	if resp, body, err := w.answer(); err != nil || resp.StatusCode != 413 || body != "too large\n" || !resp.Close {
		t.Fatalf("%v %v %q", err, resp, body)
	}
	if rest, _ := io.ReadAll(w.in); len(rest) > 0 {
		t.Fatalf("more came: %.100q", rest)
	}
}

// A handler's deadlines end the wait for a body that does not come, and for a client
// that does not read its answer.
func TestDeadlines(t *testing.T) {
	t.Parallel()
	got := make(chan error, 2)
	s := start(t, map[string]http.HandlerFunc{
		"/read": func(w http.ResponseWriter, r *http.Request) {
			rc := http.NewResponseController(w)
			_ = rc.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
			_, err := io.ReadAll(r.Body)
			got <- err
			w.Header().Set("Connection", "close")
			w.WriteHeader(http.StatusBadRequest)
		},
		"/write": func(w http.ResponseWriter, r *http.Request) {
			_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
			for {
				if _, err := w.Write(make([]byte, 1<<20)); err != nil {
					got <- err
					panic(http.ErrAbortHandler)
				}
			}
		},
	})
	w := s.dial()
	w.send(post("/read", "")[:len("POST /read HTTP/1.1\r\nHost: h\r\n")] + "Content-Length: 10\r\n\r\nabc")
	if resp, _, err := w.answer(); err != nil || resp.StatusCode != 400 {
		t.Fatalf("%v %v", err, resp)
	}
	if err := <-got; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("reading ended with %v", err)
	}
	w = s.dial()
	w.send(post("/write", ""))
	if err := <-got; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("writing ended with %v", err)
	}
}

// A client that sends nothing on a new connection has ReadHeaderTimeout; one that has
// sent a request has IdleTimeout.
func TestSilentClients(t *testing.T) {
	t.Parallel()
	s := startWith(t, front.Options{
		Routes:      map[string]http.HandlerFunc{"/echo": echo},
		Rest:        &http.Server{Handler: http.NotFoundHandler(), ReadHeaderTimeout: 2 * time.Second},
		IdleTimeout: time.Hour,
	})
	known := s.dial()
	known.send(post("/echo", "a"))
	if _, _, err := known.answer(); err != nil {
		t.Fatal(err)
	}
	if silent := s.dial(); !silent.closed() {
		t.Error("a client that says nothing is kept")
	}
	known.send(post("/echo", "b"))
	if _, body, err := known.answer(); err != nil || !strings.HasSuffix(body, "b") {
		t.Errorf("%q, %v", body, err)
	}
}
