package proxy

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/sim/testkit"
)

// What net/http reports goes to the log at level debug, not to standard error.
func TestServerLog(t *testing.T) {
	t.Parallel()
	var out testkit.Buffer
	log := logrus.New()
	log.SetOutput(&out)
	log.SetLevel(logrus.DebugLevel)
	s := newServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		w.WriteHeader(http.StatusOK)
		if _, err := io.WriteString(w, r.Proto); err != nil {
			t.Error(err)
		}
	}), log)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ln) }()
	defer func() { _ = s.Close(); <-ended }()
	resp, err := testkit.Ask(t.Context(), &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, http.MethodGet, "http://"+ln.Addr().String(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, err := io.ReadAll(resp.Body); err != nil || string(b) != "HTTP/1.1" {
		t.Errorf("%s, %v", b, err)
	}
	if text := out.String(); !strings.Contains(text, "level=debug") || !strings.Contains(text, "superfluous") || !strings.Contains(text, "component=http") {
		t.Errorf("logged: %q", text)
	}
}

// pipes is a listener of connections in memory.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	if c, ok := <-p; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}
func (p pipes) Close() error   { return nil }
func (p pipes) Addr() net.Addr { return new(net.TCPAddr) }

// A client may open a connection long before its first request.
func TestConnectionOpenedAhead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(http.NotFoundHandler(), logrus.New())
		ln := make(pipes, 1)
		defer close(ln)
		client, server := net.Pipe()
		ln <- server
		go func() { _ = s.Serve(ln) }()
		time.Sleep(time.Minute)
		_ = client.SetDeadline(time.Now().Add(time.Minute))
		if _, err := io.WriteString(client, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if answer, err := io.ReadAll(client); err != nil || !strings.Contains(string(answer), "404 Not Found") {
			t.Errorf("%q, %v", answer, err)
		}
	})
}
