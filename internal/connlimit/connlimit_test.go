package connlimit_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/connlimit"
	"github.com/pdmesh/pdmesh/internal/front"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

const patience = time.Minute

// site is one of the two servers under a limit. Its answers wait for hold where
// the path is /slow.
type site struct {
	t       *testing.T
	address string
	hold    chan struct{}
}

func open(t *testing.T, own bool, most int) *site {
	t.Helper()
	log := logrus.New()
	log.SetOutput(io.Discard)
	limit := connlimit.New(most, log)
	s := &site{t: t, hold: make(chan struct{})}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			select {
			case <-s.hold:
			case <-r.Context().Done():
				return
			}
		}
		_, _ = io.WriteString(w, "well")
	})
	std := &http.Server{Handler: handler, ReadHeaderTimeout: patience}
	limit.Watch(std)
	var server interface {
		Serve(net.Listener) error
		Close() error
	} = std
	if own {
		server = front.New(front.Options{
			Routes: map[string]http.HandlerFunc{"/": handler, "/slow": handler}, Rest: std, Limit: limit, Log: log,
		})
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.address = ln.Addr().String()
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := server.Serve(limit.Listen(ln)); !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
	})
	return s
}

func (s *site) dial() net.Conn {
	s.t.Helper()
	c, err := net.Dial("tcp", s.address)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	return c
}

func post(c net.Conn, path string) error {
	_, err := fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", path)
	return err
}

func answered(c net.Conn) error {
	if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "well" {
		return fmt.Errorf("%q, %w", body, err)
	}
	return nil
}

func both(t *testing.T, f func(t *testing.T, own bool)) {
	for _, own := range []bool{true, false} {
		t.Run(fmt.Sprintf("own %t", own), func(t *testing.T) {
			t.Parallel()
			f(t, own)
		})
	}
}

// However many clients connect and say nothing, one that asks is answered.
func TestSilentClientsGiveWay(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, own bool) {
		s := open(t, own, 8)
		for range 40 {
			s.dial()
		}
		c := s.dial()
		if err := errors.Join(post(c, "/"), answered(c)); err != nil {
			t.Error(err)
		}
	})
}

// Of clients between two requests some give way to a new one, and those in a
// request never do.
func TestIdleClientsGiveWay(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, own bool) {
		s := open(t, own, 4)
		busy := s.dial()
		if err := post(busy, "/slow"); err != nil {
			t.Fatal(err)
		}
		for range 20 {
			c := s.dial()
			if err := errors.Join(post(c, "/"), answered(c)); err != nil {
				t.Fatal(err)
			}
		}
		close(s.hold)
		if err := answered(busy); err != nil {
			t.Errorf("the client that was being served: %v", err)
		}
	})
}

// Where all are being served the next one waits, and has its turn.
func TestNextWaits(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, own bool) {
		s := open(t, own, 2)
		var all []net.Conn
		for range 5 {
			c := s.dial()
			if err := post(c, "/slow"); err != nil {
				t.Fatal(err)
			}
			all = append(all, c)
		}
		close(s.hold)
		for i, c := range all {
			if err := answered(c); err != nil {
				t.Errorf("client %d: %v", i, err)
			}
		}
	})
}

// A client that left gives its place back.
func TestPlacesComeBack(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, own bool) {
		s := open(t, own, 2)
		for range 20 {
			c := s.dial()
			if err := errors.Join(post(c, "/slow"), c.Close()); err != nil {
				t.Fatal(err)
			}
		}
		c := s.dial()
		if err := errors.Join(post(c, "/"), answered(c)); err != nil {
			t.Error(err)
		}
	})
}

// Nobody is sent away while there is room.
func TestNobodyGoesBefore(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, own bool) {
		s := open(t, own, 3)
		first := s.dial()
		if err := errors.Join(post(first, "/"), answered(first)); err != nil {
			t.Fatal(err)
		}
		second := s.dial()
		if err := errors.Join(post(second, "/"), answered(second), post(first, "/"), answered(first)); err != nil {
			t.Error(err)
		}
		third, fourth := s.dial(), s.dial()
		if err := errors.Join(post(third, "/slow"), post(fourth, "/"), answered(fourth)); err != nil {
			t.Error(err)
		}
	})
}

func TestNoLimit(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, own bool) {
		s := open(t, own, 0)
		var all []net.Conn
		for range 30 {
			all = append(all, s.dial())
		}
		for _, c := range all {
			if err := errors.Join(post(c, "/"), answered(c)); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// stuck is a connection whose end takes its time, as over TLS that of a client that reads
// nothing.
type stuck struct {
	net.Conn
	ends  chan struct{} // closed when its end has begun
	ended chan struct{}
}

func (s *stuck) Close() error {
	close(s.ends)
	<-s.ended
	return s.Conn.Close()
}

// While a client gives way the others are served.
func TestNobodyWaitsForWhoGivesWay(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	log := logrus.New()
	log.SetOutput(io.Discard)
	limit, server := connlimit.New(1, log), &http.Server{ReadHeaderTimeout: patience}
	limit.Watch(server)
	ours, theirs := net.Pipe()
	defer theirs.Close()
	slow := &stuck{Conn: ours, ends: make(chan struct{}), ended: make(chan struct{})}
	defer close(slow.ended)
	server.ConnState(slow, http.StateNew)
	server.ConnState(slow, http.StateIdle)
	next, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	served := make(chan error, 1)
	go func() {
		c, err := limit.Listen(ln).Accept()
		if err == nil {
			err = c.Close()
		}
		served <- err
	}()
	<-slow.ends
	other, _ := net.Pipe()
	passed := make(chan struct{})
	go func() {
		server.ConnState(other, http.StateActive)
		server.ConnState(slow, http.StateClosed)
		close(passed)
	}()
	for range 2 {
		select {
		case <-passed:
			passed = nil
		case err := <-served:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("all wait for the one that goes")
		}
	}
}
