package front_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/front"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// long is longer than any wait in a test that passes.
const long = 30 * time.Second

// testServer is a running server.
type testServer struct {
	*front.Server
	t       *testing.T
	address string
	ended   chan error
}

// start serves the routes. All other requests go to a standard server, whose answers
// have X-By: rest.
func start(t *testing.T, routes map[string]http.HandlerFunc) *testServer {
	t.Helper()
	rest := http.NewServeMux()
	for path, h := range routes {
		rest.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-By", "rest")
			h(w, r)
		})
	}
	return startWith(t, front.Options{Routes: routes, Rest: &http.Server{Handler: rest, ReadHeaderTimeout: long}})
}

func startWith(t *testing.T, o front.Options) *testServer {
	t.Helper()
	log := logrus.New()
	log.SetOutput(io.Discard)
	o.Log = log
	if o.Rest == nil {
		o.Rest = &http.Server{Handler: http.NotFoundHandler(), ReadHeaderTimeout: long}
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &testServer{Server: front.New(o), t: t, address: ln.Addr().String(), ended: make(chan error, 1)}
	go func() { s.ended <- s.Serve(ln) }()
	t.Cleanup(func() {
		_ = s.Close()
		if err := s.wait(); !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("the server ended with %v", err)
		}
	})
	return s
}

// wait gives what Serve returned.
func (s *testServer) wait() error {
	s.t.Helper()
	select {
	case err := <-s.ended:
		s.ended <- err
		return err
	case <-time.After(long):
		s.t.Fatal("the server does not end")
		return nil
	}
}

// wire is a client that writes and reads bytes.
type wire struct {
	*net.TCPConn
	t  *testing.T
	in *bufio.Reader
}

func (s *testServer) dial() *wire {
	s.t.Helper()
	nc, err := net.Dial("tcp", s.address)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = nc.Close() })
	_ = nc.SetDeadline(time.Now().Add(long))
	return &wire{TCPConn: nc.(*net.TCPConn), t: s.t, in: bufio.NewReader(nc)}
}

func (w *wire) send(text string) {
	w.t.Helper()
	if _, err := io.WriteString(w, text); err != nil {
		w.t.Fatal(err)
	}
}

// answer reads one answer whole; broken tells that its body did not end cleanly.
func (w *wire) answer() (resp *http.Response, body string, broken error) {
	w.t.Helper()
	resp, err := http.ReadResponse(w.in, nil)
	if err != nil {
		w.t.Fatalf("no answer: %v", err)
	}
	b, err := io.ReadAll(resp.Body)
	return resp, string(b), err
}

// closed tells that the server has ended the connection.
func (w *wire) closed() bool {
	_, err := w.in.ReadByte()
	return err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
}

func post(path, body string, fields ...string) string {
	head := "POST " + path + " HTTP/1.1\r\nHost: h\r\n"
	for _, f := range fields {
		head += f + "\r\n"
	}
	return head + fmt.Sprintf("Content-Length: %d\r\n\r\n", len(body)) + body
}

// echo answers with its request, with sorted fields.
func echo(w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	var fields []string
	for name, values := range r.Header {
		if name != "Content-Length" { // only net/http has it among the fields
			fields = append(fields, fmt.Sprintf("%s=%q", name, values))
		}
	}
	slices.Sort(fields)
	text := fmt.Sprintf("%s %s %s %s host=%s length=%d close=%v\n%s\n%s", r.Method, r.RequestURI, r.URL, r.Proto, r.Host,
		r.ContentLength, r.Close, strings.Join(fields, "\n"), b)
	w.Header().Set("Content-Type", "text/plain")
	w.Header().Set("Content-Length", fmt.Sprint(len(text)))
	_, _ = io.WriteString(w, text)
}

// Some clients send a line end after a body, which its length does not count.
func TestLineEndsBetweenRequests(t *testing.T) {
	t.Parallel()
	w := start(t, map[string]http.HandlerFunc{"/a": echo}).dial()
	for i, between := range []string{"", "\r\n", "\n", "\r\n\r\n"} {
		w.send(between)
		for _, behind := range []string{"", "\r\n"} { // alone, and with the next request
			w.send(post("/a", "x") + behind)
			if resp, _, err := w.answer(); err != nil || resp.StatusCode != http.StatusOK || resp.Header.Get("X-By") != "" {
				t.Fatalf("%d: %v, %v", i, resp, err)
			}
		}
	}
	w.send("\r\n\r\n\r\nPOST")
	if resp, _, _ := w.answer(); resp.StatusCode != http.StatusBadRequest {
		t.Errorf("three empty lines: %s", resp.Status)
	}
}
