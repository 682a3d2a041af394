package upstream_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/transport/certs"
	"github.com/pdmesh/pdmesh/internal/transport/upstream"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

// counting is a server that answers every request, and counts its connections.
type counting struct {
	*instance.Instance
	opened, closed atomic.Int64
}

func startCounting(t *testing.T) *counting {
	t.Helper()
	s := &counting{}
	s.Instance = server(t, func(_ int, c net.Conn, r *bufio.Reader) {
		s.opened.Add(1)
		defer s.closed.Add(1)
		for {
			if _, _, err := readRequest(r); err != nil {
				return
			}
			_, _ = io.WriteString(c, ok)
		}
	})
	return s
}

func (s *counting) eventually(t *testing.T, opened, closed int64) {
	t.Helper()
	testkit.Eventually(t, 10*time.Second, func() error {
		if o, c := s.opened.Load(), s.closed.Load(); o != opened || c != closed {
			return fmt.Errorf("%d opened, %d closed; want %d and %d", o, c, opened, closed)
		}
		return nil
	})
}

func TestIdleConnectionsEnd(t *testing.T) {
	t.Parallel()
	s := startCounting(t)
	p := newPool(t, upstream.Options{IdleTimeout: 20 * time.Millisecond})
	for i := range int64(3) {
		b, e := do(t, p, s.Instance)
		require.True(t, e == nil && b == "ok", "%q, %v", b, e)
		// No request follows: the sweep alone closes the connection.
		s.eventually(t, i+1, i+1)
	}
}

func TestPool_NewIncarnationClosesIdle(t *testing.T) {
	t.Parallel()
	s := startCounting(t)
	p := newPool(t, upstream.Options{IdleTimeout: time.Hour})
	first, second, other := *s.Instance, *s.Instance, *s.Instance
	first.Record.ID, second.Record.ID = "a#1", "a#2"
	other.Role, other.Record.ID = instance.Prefill, "a#3"
	for i, step := range []struct {
		in             *instance.Instance
		opened, closed int64
	}{
		{&first, 1, 0},
		{&first, 1, 0},
		{&other, 2, 0}, // the same engine in its other role has separate ones
		{&first, 2, 0},
		{&second, 3, 1},
		{&second, 3, 1},
		{&other, 3, 1},
	} {
		_, e := do(t, p, step.in)
		require.True(t, e == nil, e)
		require.Equal(t, step.opened, s.opened.Load(), "step %d: opened", i)
		s.eventually(t, step.opened, step.closed)
	}
}

func TestForgetAndClose(t *testing.T) {
	t.Parallel()
	s := startCounting(t)
	p := newPool(t, upstream.Options{IdleTimeout: time.Hour}) // no connection expires
	use := func() {
		t.Helper()
		_, e := do(t, p, s.Instance)
		require.True(t, e == nil, e)
	}
	use()
	p.Forget("127.0.0.1:1")
	use()
	s.eventually(t, 1, 0)
	p.Forget(s.Address)
	s.eventually(t, 1, 1)
	use()
	// The connection of a running exchange is not returned to the pool either.
	resp, err := p.Do(t.Context(), request(s.Instance))
	require.NoError(t, err)
	p.Forget(s.Address)
	_, _ = io.ReadAll(resp.Body)
	s.eventually(t, 2, 2)
	use()
	p.Close()
	s.eventually(t, 3, 3)
	use() // still serves, but keeps no connection
	s.eventually(t, 4, 4)
}

// Bytes that an engine sends before a request, and a close by the engine, are detected before
// the connection is reused. No request is lost, and no answer goes to another request.
func TestIdleConnection_Checked(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, how string
		body      int
	}{
		{"closed", "closed", 7},
		{"closed, then a large request", "closed", 100 << 10},
		{"unasked answer", "unasked answer", 7},
		{"unasked answer, then a large request", "unasked answer", 100 << 10},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			answered, sent := make(chan struct{}), make(chan struct{})
			in := server(t, func(n int, c net.Conn, r *bufio.Reader) {
				_, _, _ = readRequest(r)
				_, _ = io.WriteString(c, ok)
				if n > 0 {
					_, _ = r.ReadByte()
					return
				}
				<-answered // otherwise the client may find the further bytes with the answer
				if tc.how == "unasked answer" {
					_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison")
					close(sent)
					_, _ = r.ReadByte()
					return
				}
				_ = c.Close()
				close(sent)
			})
			p, proceed := newPool(t, upstream.Options{}), sync.OnceFunc(func() { close(answered) })
			t.Cleanup(proceed)
			for i := range 2 {
				r := request(in)
				r.Body = [][]byte{make([]byte, tc.body), {'x'}}
				_, b, err := fetch(t.Context(), p, r)
				proceed()
				require.True(t, err == nil && b == "ok", "%d: %q, %v", i, b, err)
				<-sent
			}
			n := p.StaleRetries()
			assert.False(t, n != 0 && runtime.GOOS == "linux", "%d requests were sent twice", n)
		})
	}
}

func TestTooManyInterimAnswers(t *testing.T) {
	t.Parallel()
	in := server(t, func(_ int, c net.Conn, r *bufio.Reader) {
		_, _, _ = readRequest(r)
		_, _ = io.WriteString(c, strings.Repeat("HTTP/1.1 102 Processing\r\n\r\n", 100)+ok)
		_, _ = r.ReadByte()
	})
	_, e := do(t, newPool(t, upstream.Options{}), in)
	require.True(t, e != nil && e.Stage == upstream.StageHeaders, "%v", e)
}

// A protocol switch that no request asked for is an error, and ends the connection.
func TestSwitchedProtocol(t *testing.T) {
	t.Parallel()
	forEachClient(t, func(t *testing.T, open opener) {
		left := make(chan error, 1)
		in := server(t, func(_ int, c net.Conn, r *bufio.Reader) {
			_, _, _ = readRequest(r)
			_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
			_, err := r.ReadByte()
			left <- err
		})
		_, e := do(t, open(t, upstream.Options{}), in)
		require.True(t, e != nil && e.Stage == upstream.StageHeaders && e.MaybeTaken, "%v", e)
		require.Error(t, <-left, "the engine read a byte")
	})
}

// An engine that refuses our certificate in TLS 1.3 closes the connection while the request is
// being sent. The error is the refusal, not the write error, whichever comes first.
func TestRefusedCertificate(t *testing.T) {
	t.Parallel()
	forEachClient(t, func(t *testing.T, open opener) {
		srv := httptest.NewUnstartedServer(http.NotFoundHandler())
		srv.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
		srv.Config.ErrorLog = log.New(io.Discard, "", 0)
		srv.StartTLS()
		t.Cleanup(srv.Close)
		in := instanceAt(srv.Listener.Addr().String())
		in.Record.Scheme = "https"
		trusting := srv.Client().Transport.(*http.Transport).TLSClientConfig
		c := open(t, upstream.Options{TLS: func() *tls.Config { return trusting }})
		for _, size := range slices.Repeat([]int{1000, 64 << 10, 1 << 20}, 20) {
			r := request(in)
			r.Body = [][]byte{make([]byte, size)}
			_, err := c.Do(t.Context(), r)
			e, _ := errors.AsType[*upstream.Error](err)
			if e == nil || e.Untrusted() == nil || e.Untrusted().Reason != certs.NoCertificate || e.Stage != upstream.StageNotConnected || e.MaybeTaken {
				t.Fatalf("%d bytes: %+v", size, err)
			}
		}
	})
}

// A blocked write ends with the context, like a blocked read.
func TestCancelOfABlockedWrite(t *testing.T) {
	t.Parallel()
	forEachClient(t, func(t *testing.T, open opener) {
		arrived, release := make(chan struct{}), make(chan struct{})
		in := server(t, func(_ int, _ net.Conn, r *bufio.Reader) {
			_, _ = r.Peek(1)
			close(arrived)
			<-release // never reads
		})
		defer close(release)
		why := errors.New("called off")
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() { <-arrived; cancel(why) }()
		r := request(in)
		r.Body = [][]byte{make([]byte, 32<<20)}
		_, err := open(t, upstream.Options{}).Do(ctx, r)
		var e *upstream.Error
		require.True(t, errors.As(err, &e) && errors.Is(err, why) && e.Stage == upstream.StageSent, "%v", err)
	})
}

// In thousands of requests, a third of them cancelled at any moment, no
// request reads another one's answer, and no connection leaks.
func TestCancelAtAnyMoment(t *testing.T) {
	t.Parallel()
	forEachClient(t, func(t *testing.T, open opener) {
		in := server(t, func(_ int, c net.Conn, r *bufio.Reader) {
			for {
				req, body, err := readRequest(r)
				if err != nil {
					return
				}
				token := req.Header.Get("X-Token")
				assert.Equal(t, token, body, "body of a request")
				n, _ := strconv.Atoi(token)
				switch n % 3 {
				case 0:
					fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\nX-Token: %s\r\n\r\n%s", len(token), token, token)
				case 1:
					fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Token: %s\r\n\r\n", token)
					for i := range len(token) {
						fmt.Fprintf(c, "1\r\n%s\r\n", token[i:i+1])
					}
					_, _ = io.WriteString(c, "0\r\n\r\n")
				default: // in two steps, so that a cancellation may come between them
					fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n", len(token))
					runtime.Gosched()
					fmt.Fprintf(c, "X-Token: %s\r\n\r\n%s", token, token)
				}
			}
		})
		c := open(t, upstream.Options{})
		why := errors.New("called off")
		var served, off atomic.Int64
		var wg sync.WaitGroup
		for w := range 8 {
			wg.Go(func() {
				rnd := rand.New(rand.NewPCG(uint64(w), 7))
				for i := range 600 {
					token := strconv.Itoa(w*100000 + i)
					ctx, cancel := context.WithCancelCause(t.Context())
					var timer *time.Timer
					if rnd.IntN(3) == 0 {
						timer = time.AfterFunc(time.Duration(rnd.IntN(250))*time.Microsecond, func() { cancel(why) })
					}
					resp, b, err := fetch(ctx, c, &upstream.Request{
						Instance: in, Method: "POST", Path: "/", Header: http.Header{"X-Token": {token}}, Body: [][]byte{[]byte(token)},
					})
					switch {
					case err == nil && b == token && resp.Header.Get("X-Token") == token:
						served.Add(1)
					case err != nil && timer != nil && errors.Is(err, why):
						off.Add(1)
					default:
						t.Errorf("%s: %q, %v", token, b, err)
					}
					if timer != nil {
						timer.Stop()
					}
					cancel(nil)
				}
			})
		}
		wg.Wait()
		assert.True(t, served.Load() != 0 && off.Load() != 0,
			"%d served, %d called off: the test tests nothing", served.Load(), off.Load())
	})
}

// New incarnations, Forget and the sweep during traffic.
func TestPoolUnderChange(t *testing.T) {
	t.Parallel()
	s := startCounting(t)
	p := newPool(t, upstream.Options{IdleTimeout: 2 * time.Millisecond})
	var wg sync.WaitGroup
	for w := range 6 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(w), 3))
			for i := range 400 {
				in := *s.Instance
				in.Record.ID = strconv.Itoa(i / 50)
				if _, b, err := fetch(t.Context(), p, request(&in)); err != nil || b != "ok" {
					t.Errorf("%q, %v", b, err)
					return
				}
				if rnd.IntN(40) == 0 {
					p.Forget(s.Address)
				}
			}
		})
	}
	wg.Wait()
	p.Close()
	testkit.Eventually(t, 10*time.Second, func() error {
		if o, c := s.opened.Load(), s.closed.Load(); o != c {
			return fmt.Errorf("%d opened, %d closed", o, c)
		}
		return nil
	})
}
