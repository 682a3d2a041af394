package connlimit_test

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/httpapi/connlimit"
	"github.com/pdmesh/pdmesh/internal/transport/certs"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

const patience = time.Minute

// site is a server with a limit. Requests for /slow are answered once hold is closed; /health is exempt.
type site struct {
	t       *testing.T
	address string
	hold    chan struct{}
	config  *tls.Config // nil: no TLS
}

// open starts a server with at most n connections.
func open(t *testing.T, secure bool, n int) *site {
	t.Helper()
	log := logrus.New()
	log.SetOutput(io.Discard)
	limit := connlimit.New(n, log)
	s := &site{t: t, hold: make(chan struct{})}
	server := &http.Server{ReadHeaderTimeout: patience, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			select {
			case <-s.hold:
			case <-r.Context().Done():
				return
			}
		}
		_, _ = io.WriteString(w, "well")
	})}
	limit.Apply(server, func(r *http.Request) bool { return r.URL.Path == "/health" }, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	ln := testkit.Listen(t)
	s.address = ln.Addr().String()
	ln = limit.Listen(ln)
	if secure {
		a := testkit.NewAuthority(t, "fleet")
		cert, key := a.Issue("proxy", testkit.Certificate{Hosts: []string{"127.0.0.1"}})
		source, err := certs.Open(certs.Options{Files: certs.Files{Cert: cert, Key: key}})
		require.NoError(t, err)
		s.config = &tls.Config{RootCAs: a.Pool()}
		ln = source.Listen(ln, log)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		assert.ErrorIs(t, server.Serve(ln), http.ErrServerClosed)
	})
	t.Cleanup(func() {
		assert.NoError(t, server.Close())
		wg.Wait()
	})
	return s
}

// client is one connection of a client.
type client struct {
	net.Conn
	in *bufio.Reader
}

func (s *site) dial() *client {
	s.t.Helper()
	c, err := net.Dial("tcp", s.address)
	require.NoError(s.t, err)
	s.t.Cleanup(func() { c.Close() })
	if s.config != nil {
		config := s.config.Clone()
		config.ServerName = "127.0.0.1"
		c = tls.Client(c, config)
	}
	_ = c.SetDeadline(time.Now().Add(patience))
	return &client{c, bufio.NewReader(c)}
}

func (c *client) send(path string) error {
	_, err := fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", path)
	return err
}

// answer reads an answer. closed reports whether the server closed the connection after it.
func (c *client) answer() (status int, closed bool, err error) {
	resp, err := http.ReadResponse(c.in, nil)
	if err != nil {
		return 0, false, err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return 0, false, err
	}
	if !resp.Close {
		return resp.StatusCode, false, nil
	}
	if _, err := c.in.ReadByte(); !errors.Is(err, io.EOF) {
		return 0, false, fmt.Errorf("announced the end of the connection, then %w", err)
	}
	return resp.StatusCode, true, nil
}

// expect sends a request and checks its answer.
func (s *site) expect(c *client, path string, want int, wantClosed bool) {
	s.t.Helper()
	require.NoError(s.t, c.send(path))
	if status, closed, err := c.answer(); status != want || closed != wantClosed || err != nil {
		s.t.Fatalf("%s: %d, closed %t, %v; want %d, %t", path, status, closed, err, want, wantClosed)
	}
}

func both(t *testing.T, f func(t *testing.T, secure bool)) {
	for _, secure := range []bool{false, true} {
		t.Run(fmt.Sprintf("TLS %t", secure), func(t *testing.T) {
			t.Parallel()
			f(t, secure)
		})
	}
}

// At the limit, a request gets 503, an exempt request gets its answer, and both
// connections end. Idle and busy connections within the limit stay open.
func TestRefusedAtTheLimit(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, secure bool) {
		s := open(t, secure, 2)
		idle, busy := s.dial(), s.dial()
		s.expect(idle, "/", http.StatusOK, false)
		require.NoError(t, busy.send("/slow"))
		for range 10 { // more than fit beyond the limit at the same time
			s.expect(s.dial(), "/", http.StatusServiceUnavailable, true)
			s.expect(s.dial(), "/health", http.StatusOK, true)
		}
		s.expect(idle, "/", http.StatusOK, false)
		close(s.hold)
		status, _, err := busy.answer()
		assert.True(t, status == http.StatusOK && err == nil, "the request that was running: %d, %v", status, err)
	})
}

// A client beyond the limit is served once another connection has ended.
func TestConnLimit_ServedWhenAnotherEnds(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, secure bool) {
		s := open(t, secure, 1)
		first := s.dial()
		s.expect(first, "/", http.StatusOK, false)
		s.expect(s.dial(), "/", http.StatusServiceUnavailable, true)
		first.Close()
		testkit.Eventually(t, patience, func() error {
			c := s.dial()
			if err := c.send("/"); err != nil {
				return err
			}
			if status, closed, err := c.answer(); status != http.StatusOK || closed || err != nil {
				return fmt.Errorf("%d, closed %t, %w", status, closed, err)
			}
			s.expect(c, "/", http.StatusOK, false)
			return nil
		})
	})
}

// Clients that connect beyond the limit and send nothing are disconnected, so that health checks succeed.
func TestSilentClientsBeyondTheLimit(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, secure bool) {
		s := open(t, secure, 1)
		s.expect(s.dial(), "/", http.StatusOK, false)
		for range 6 {
			c, err := net.Dial("tcp", s.address)
			require.NoError(t, err)
			defer c.Close()
		}
		s.expect(s.dial(), "/health", http.StatusOK, true)
	})
}

// Inactive connections beyond the limit do not delay a health check: silent ones, those whose
// refused body does not arrive, and those whose request was served without its body.
func TestHealthNextToSilentClients(t *testing.T) {
	t.Parallel()
	for name, sent := range map[string]string{
		"silent":  "",
		"refused": "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n",
		"served":  "GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				log := logrus.New()
				log.SetOutput(io.Discard)
				limit, pipes := connlimit.New(1, log), &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
				server := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}
				limit.Apply(server, func(r *http.Request) bool { return r.URL.Path == "/health" }, func(w http.ResponseWriter, r *http.Request) {
					w.WriteHeader(http.StatusServiceUnavailable)
					_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(time.Minute))
					_, _ = io.Copy(io.Discard, r.Body)
				})
				var work sync.WaitGroup
				work.Go(func() { _ = server.Serve(limit.Listen(pipes)) })
				defer func() {
					_ = server.Close()
					work.Wait()
					time.Sleep(time.Second) // package net/http waits before it closes
				}()
				work.Go(func() { _, _ = pipes.dial() }) // within the limit
				synctest.Wait()
				const silent = 100
				for range silent {
					work.Go(func() {
						if c, err := pipes.dial(); err == nil {
							_, _ = io.WriteString(c, sent)
							_, _ = io.Copy(io.Discard, c)
						}
					})
				}
				synctest.Wait()
				began := time.Now()
				c, err := pipes.dial()
				require.NoError(t, err)
				_, err = io.WriteString(c, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
				require.NoError(t, err)
				resp, err := http.ReadResponse(bufio.NewReader(c), nil)
				require.NoError(t, err)
				if took := time.Since(began); resp.StatusCode != http.StatusOK || took > 20*time.Second {
					t.Errorf("status %d after %s", resp.StatusCode, took)
				}
			})
		})
	}
}

// pipeListener accepts pipes.
type pipeListener struct {
	net.Listener

	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{} }

func (l *pipeListener) dial() (net.Conn, error) {
	server, client := net.Pipe()
	select {
	case l.conns <- server:
		return client, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func TestNoLimit(t *testing.T) {
	t.Parallel()
	s := open(t, false, 0)
	for range 30 {
		s.expect(s.dial(), "/", http.StatusOK, false)
	}
}
