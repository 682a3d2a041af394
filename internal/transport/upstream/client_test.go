package upstream_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/transport/netguard"
	"github.com/pdmesh/pdmesh/internal/transport/upstream"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// server runs script for every connection, with the connection's number from 0.
func server(t *testing.T, script func(n int, c net.Conn, r *bufio.Reader)) *instance.Instance {
	t.Helper()
	address := testkit.RawServer(t, func(n int, c net.Conn) { script(n, c, bufio.NewReader(c)) })
	return &instance.Instance{Key: instance.Key{Role: instance.Decode, Address: address}}
}

// readRequest reads one whole request from the connection.
func readRequest(r *bufio.Reader) (*http.Request, string, error) {
	req, err := http.ReadRequest(r)
	if err != nil {
		return nil, "", err
	}
	b, err := io.ReadAll(req.Body)
	return req, string(b), err
}

func reset(c net.Conn) {
	_ = c.(*net.TCPConn).SetLinger(0)
	_ = c.Close()
}

const ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// opener returns a client of the implementation under test.
type opener func(t *testing.T, o upstream.Options) client

type client interface {
	upstream.Client
	StaleRetries() int64
}

// forEachClient runs a test with every implementation, or with the one in PD_TEST_UPSTREAM.
func forEachClient(t *testing.T, test func(t *testing.T, open opener)) {
	t.Helper()
	forEachDialing(t, func(t *testing.T, open opener) {
		test(t, func(t *testing.T, o upstream.Options) client {
			t.Helper()
			return open(t, o.Patient())
		})
	})
}

// forEachDialing is forEachClient for tests of several dials for one connection.
func forEachDialing(t *testing.T, test func(t *testing.T, open opener)) {
	t.Helper()
	for _, kind := range []string{upstream.KindOwn, upstream.KindStd} {
		if only := os.Getenv("PD_TEST_UPSTREAM"); only != "" && only != kind {
			continue
		}
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			test(t, func(t *testing.T, o upstream.Options) client {
				t.Helper()
				c := upstream.New(kind, o)
				t.Cleanup(c.Close)
				return c.(client)
			})
		})
	}
}

func request(in *instance.Instance) *upstream.Request {
	return &upstream.Request{
		Instance: in, Method: http.MethodPost, Path: "/v1/completions?x=1",
		Header: http.Header{"X-A": {"1"}, "User-Agent": nil}, Body: [][]byte{[]byte(`{"a":`), []byte(`1}`)},
	}
}

func do(t *testing.T, c upstream.Client, in *instance.Instance) (string, *upstream.Error) {
	t.Helper()
	resp, err := c.Do(t.Context(), request(in))
	if err == nil {
		var b []byte
		b, err = io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err == nil {
			return string(b), nil
		}
	}
	var e *upstream.Error
	require.True(t, errors.As(err, &e), "error of type %T: %v", err, err)
	return "", e
}

func TestRequestOnTheWire(t *testing.T) {
	t.Parallel()
	forEachClient(t, func(t *testing.T, open opener) {
		got := make(chan string, 1)
		in := server(t, func(_ int, c net.Conn, r *bufio.Reader) {
			req, body, err := readRequest(r)
			if err != nil {
				return
			}
			_, hasAgent := req.Header["User-Agent"]
			got <- strings.Join([]string{req.Method, req.RequestURI, req.Host, body, req.Header.Get("X-A"), req.Header.Get("Accept-Encoding")}, "|") +
				map[bool]string{true: "|agent"}[hasAgent]
			_, _ = io.WriteString(c, ok)
		})
		b, e := do(t, open(t, upstream.Options{}), in)
		require.True(t, e == nil && b == "ok", "%q, %v", b, e)
		require.Equal(t, "POST|/v1/completions?x=1|"+in.Address+`|{"a":1}|1|`, <-got)
	})
}

func TestStages(t *testing.T) {
	t.Parallel()
	forEachClient(t, func(t *testing.T, open opener) {
		for _, tc := range []struct {
			name, answer string
			reset        bool
			stage        upstream.Stage
		}{
			{"closed after the request", "", false, upstream.StageSent},
			{"reset after the request", "", true, upstream.StageSent},
			{"garbage", "what?\r\n\r\n", false, upstream.StageHeaders},
			{"cut header", "HTTP/1.1 200 OK\r\nX: ", false, upstream.StageHeaders},
			{"huge header", "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 1<<18) + "\r\n\r\n", false, upstream.StageHeaders},
			{"short body", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", false, upstream.StageBody},
			{"cut chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", false, upstream.StageBody},
			{"missing last chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n", false, upstream.StageBody},
		} {
			t.Run(tc.name, func(t *testing.T) {
				t.Parallel()
				in := server(t, func(_ int, c net.Conn, r *bufio.Reader) {
					_, _, _ = readRequest(r)
					if tc.reset {
						reset(c)
					}
					_, _ = io.WriteString(c, tc.answer)
				})
				_, e := do(t, open(t, upstream.Options{}), in)
				require.True(t, e != nil && e.Stage == tc.stage && e.MaybeTaken && !e.Refused(), "%+v (%v), want %s", e, e, tc.stage)
			})
		}
	})
}

func TestNotConnected(t *testing.T) {
	t.Parallel()
	forEachClient(t, func(t *testing.T, open opener) {
		ln := testkit.Listen(t)
		in := &instance.Instance{Key: instance.Key{Address: ln.Addr().String()}}
		_ = ln.Close()
		_, e := do(t, open(t, upstream.Options{}), in)
		require.True(t, e != nil && e.Stage == upstream.StageNotConnected && e.Refused() && !e.MaybeTaken,
			"refused: %+v", e)
		require.True(t, testkit.Contains(t, e.Error(), "connection refused", in.Address))
		guarded := open(t, upstream.Options{Guard: netguard.New([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")})})
		_, e = do(t, guarded, in)
		require.True(t, e != nil && errors.Is(e, netguard.ErrForbidden) && e.Stage == upstream.StageNotConnected,
			"guarded: %+v", e)
	})
}

// A request on a connection that the engine closes as idle is retried on a new one.
func TestStaleConnection(t *testing.T) {
	t.Parallel()
	forEachClient(t, func(t *testing.T, open opener) {
		for _, how := range []string{"closed", "reset"} {
			t.Run(how, func(t *testing.T) {
				t.Parallel()
				closed := make(chan struct{})
				in := server(t, func(n int, c net.Conn, r *bufio.Reader) {
					if _, _, err := readRequest(r); err != nil {
						return
					}
					_, _ = io.WriteString(c, ok)
					if n == 0 {
						// The next request is read and dropped without an answer, as if
						// it was in flight while the engine closed the connection.
						_, _, _ = readRequest(r)
						if how == "reset" {
							reset(c)
						}
						close(closed)
					}
				})
				c := open(t, upstream.Options{})
				for range 2 {
					b, e := do(t, c, in)
					require.True(t, e == nil && b == "ok", "%q, %v", b, e)
				}
				<-closed
				require.EqualValues(t, 1, c.StaleRetries(), "stale retries")
			})
		}
	})
}

// A request that the engine must not receive twice is not retried.
func TestStaleConnection_Once(t *testing.T) {
	t.Parallel()
	forEachClient(t, func(t *testing.T, open opener) {
		var received atomic.Int64
		in := server(t, func(_ int, c net.Conn, r *bufio.Reader) {
			for range 2 {
				if _, _, err := readRequest(r); err != nil {
					return
				}
				if received.Add(1) == 1 {
					_, _ = io.WriteString(c, ok)
				}
			}
		})
		c := open(t, upstream.Options{})
		b, e := do(t, c, in)
		require.True(t, e == nil && b == "ok", "%q, %v", b, e)
		r := request(in)
		r.Once = true
		_, err := c.Do(t.Context(), r)
		e, _ = errors.AsType[*upstream.Error](err)
		require.True(t, e != nil && e.Stage == upstream.StageStale && e.MaybeTaken, "%+v", err)
		if n := received.Load(); n != 2 || c.StaleRetries() != 0 {
			t.Fatalf("%d requests were received, %d stale retries", n, c.StaleRetries())
		}
	})
}

func TestStaleConnection_EngineGone(t *testing.T) {
	t.Parallel()
	forEachClient(t, func(t *testing.T, open opener) {
		ln := testkit.Listen(t)
		done := make(chan struct{})
		go func() {
			defer close(done)
			c, err := ln.Accept()
			if err != nil {
				return
			}
			r := bufio.NewReader(c)
			_, _, _ = readRequest(r)
			_, _ = io.WriteString(c, ok)
			_, _, _ = readRequest(r)
			_ = ln.Close() // the engine is killed while it processes the request
			reset(c)
		}()
		in := &instance.Instance{Key: instance.Key{Address: ln.Addr().String()}}
		c := open(t, upstream.Options{})
		if _, e := do(t, c, in); e != nil {
			t.Fatal(e)
		}
		_, e := do(t, c, in)
		<-done
		require.True(t, e != nil && e.Refused() && e.MaybeTaken,
			"%+v: the instance exited and may have received the request", e)
	})
}

func TestContextCause(t *testing.T) {
	t.Parallel()
	forEachClient(t, func(t *testing.T, open opener) {
		why := errors.New("our deadline")
		for _, at := range []string{"header", "body"} {
			t.Run(at, func(t *testing.T) {
				t.Parallel()
				arrived := make(chan struct{})
				in := server(t, func(_ int, c net.Conn, r *bufio.Reader) {
					if _, _, err := readRequest(r); err != nil {
						return
					}
					if at == "body" {
						_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nsho")
					}
					close(arrived)
					_, _ = r.ReadByte() // until the client leaves
				})
				ctx, cancel := context.WithCancelCause(t.Context())
				go func() { <-arrived; cancel(why) }()
				resp, err := open(t, upstream.Options{}).Do(ctx, request(in))
				if at == "body" {
					if err != nil {
						// The cancellation may win the race against the header.
						require.ErrorIs(t, err, why)
						return
					}
					_, err = io.ReadAll(resp.Body)
					_ = resp.Body.Close()
				}
				require.ErrorIs(t, err, why, "error does not name the cause")
			})
		}
	})
}

func TestRedirects_NotFollowed(t *testing.T) {
	t.Parallel()
	forEachClient(t, func(t *testing.T, open opener) {
		in := server(t, func(_ int, c net.Conn, r *bufio.Reader) {
			_, _, _ = readRequest(r)
			_, _ = io.WriteString(c, "HTTP/1.1 307 Temporary Redirect\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n")
		})
		resp, err := open(t, upstream.Options{}).Do(t.Context(), request(in))
		require.NoError(t, err)
		_ = resp.Body.Close()
		require.Equal(t, http.StatusTemporaryRedirect, resp.Status)
	})
}

func TestTimeout(t *testing.T) {
	t.Parallel()
	forEachClient(t, func(t *testing.T, open opener) {
		e := &upstream.Error{Err: &net.OpError{Op: "dial", Err: context.DeadlineExceeded}}
		require.True(t, e.Timeout(), "a dial deadline is a timeout")
		ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
		defer cancel()
		<-ctx.Done()
		_, err := open(t, upstream.Options{}).Do(ctx, request(&instance.Instance{Key: instance.Key{Address: "127.0.0.1:1"}}))
		var ue *upstream.Error
		require.True(t, errors.As(err, &ue) && ue.Stage == upstream.StageNotConnected, "%v", err)
	})
}
