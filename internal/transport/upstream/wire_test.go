package upstream_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/transport/upstream"
)

func newPool(t testing.TB, o upstream.Options) *upstream.Pool {
	t.Helper()
	p := upstream.NewPool(o.Patient())
	t.Cleanup(p.Close)
	return p
}

func instanceAt(address string) *instance.Instance {
	return &instance.Instance{Key: instance.Key{Role: instance.Decode, Address: address}}
}

// fetch reads one complete answer.
func fetch(ctx context.Context, c upstream.Client, r *upstream.Request) (*upstream.Response, string, error) {
	resp, err := c.Do(ctx, r)
	if err != nil {
		return nil, "", err
	}
	b, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	return resp, string(b), err
}

// The responses of net/http's server are read correctly, on as few connections as possible.
func TestStandardServerResponses(t *testing.T) {
	t.Parallel()
	forEachClient(t, func(t *testing.T, open opener) {
		mux := http.NewServeMux()
		mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			w.Header().Set("X-Query", r.URL.RawQuery)
			w.Header().Set("X-Length", strconv.FormatInt(r.ContentLength, 10))
			_, _ = w.Write(b)
		})
		mux.HandleFunc("/stream", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			for i := range 50 {
				fmt.Fprintf(w, "data: %d\n\n", i)
				w.(http.Flusher).Flush()
			}
		})
		mux.HandleFunc("/trailer", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "X-Sum")
			_, _ = io.WriteString(w, strings.Repeat("x", 5000))
			w.Header().Set("X-Sum", "1")
		})
		mux.HandleFunc("/hints", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusEarlyHints)
			_, _ = io.WriteString(w, "after hints")
		})
		mux.HandleFunc("/none", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
		mux.HandleFunc("/close", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Connection", "close")
			_, _ = io.WriteString(w, "last")
		})
		mux.HandleFunc("GET /sp%20ace", func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.RequestURI) })
		var conns atomic.Int64
		srv := httptest.NewUnstartedServer(mux)
		srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
			if s == http.StateNew {
				conns.Add(1)
			}
		}
		srv.Start()
		t.Cleanup(srv.Close)
		in := instanceAt(srv.Listener.Addr().String())
		c := open(t, upstream.Options{})
		large := bytes.Repeat([]byte("0123456789abcdef"), 1<<16) // 1 MiB
		kept := slices.Clone(large)
		var events strings.Builder
		for i := range 50 {
			fmt.Fprintf(&events, "data: %d\n\n", i)
		}
		for _, tc := range []struct {
			name, method, path string
			body               [][]byte
			status             int
			want               string
		}{
			{"small", "POST", "/echo?a=b&c=%20", [][]byte{[]byte("a"), nil, []byte("b")}, 200, "ab"},
			{"no body", "POST", "/echo", nil, 200, ""},
			{"get", "GET", "/echo", nil, 200, ""},
			{"middle", "POST", "/echo", [][]byte{large[:3000], large[:3000]}, 200, string(large[:3000]) + string(large[:3000])},
			{"large", "POST", "/echo", [][]byte{large[:10], large[10 : 1<<19], large[1<<19:]}, 200, string(large)},
			{"stream", "GET", "/stream", nil, 200, events.String()},
			{"trailer", "GET", "/trailer", nil, 200, strings.Repeat("x", 5000)},
			{"hints", "GET", "/hints", nil, 200, "after hints"},
			{"none", "GET", "/none", nil, 204, ""},
			{"HEAD", "HEAD", "/echo", nil, 200, ""},
			{"escaped path", "GET", "/sp ace?x", nil, 200, "/sp%20ace?x"},
			{"not found", "GET", "/what", nil, 404, "404 page not found\n"},
		} {
			resp, got, err := fetch(t.Context(), c, &upstream.Request{
				Instance: in, Method: tc.method, Path: tc.path, Header: http.Header{"User-Agent": nil}, Body: tc.body,
			})
			require.True(t, err == nil && resp.Status == tc.status && got == tc.want,
				"%s: %v, %+v, %d bytes", tc.name, err, resp, len(got))
		}
		assert.EqualValues(t, 1, conns.Load(), "connections for requests one after another")
		for range 3 {
			_, got, err := fetch(t.Context(), c,
				&upstream.Request{Instance: in, Method: "GET", Path: "/close", Header: http.Header{}})
			require.True(t, err == nil && got == "last", "%q, %v", got, err)
		}
		assert.EqualValues(t, 3, conns.Load(), "connections: one that was announced closed was used, or one was not kept")
		assert.True(t, bytes.Equal(large, kept), "the body's bytes were changed")
	})
}

// uvicornHead is the start of an answer of uvicorn, vLLM's server.
const uvicornHead = "HTTP/1.1 200 OK\r\ndate: Thu, 01 Jan 2026 00:00:00 GMT\r\nserver: uvicorn\r\n"

// uvicorn sends lower-case names, one event per chunk and the last
// chunk in a separate segment, and closes idle connections.
func TestUvicornResponses(t *testing.T) {
	t.Parallel()
	forEachClient(t, func(t *testing.T, open opener) {
		closed := make(chan struct{})
		// The count is over all connections: the standard library's client
		// may not have the last one back yet, and open another one.
		var asked atomic.Int64
		in := server(t, func(_ int, c net.Conn, r *bufio.Reader) {
			for {
				if _, _, err := readRequest(r); err != nil {
					return
				}
				i := asked.Add(1) - 1
				if i%2 == 0 {
					_, _ = io.WriteString(c, uvicornHead+"content-length: 11\r\ncontent-type: application/json\r\n\r\n{\"id\":\"a\"}\n")
					continue
				}
				_, _ = io.WriteString(c, uvicornHead+"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n")
				for _, e := range []string{"data: one\n\n", "data: two\n\n", "data: [DONE]\n\n"} {
					fmt.Fprintf(c, "%x\r\n%s\r\n", len(e), e)
				}
				_, _ = io.WriteString(c, "0\r\n\r\n")
				if i == 3 {
					_ = c.Close() // its keep-alive timeout
					close(closed)
					return
				}
			}
		})
		c := open(t, upstream.Options{})
		for i := range 6 {
			resp, got, err := fetch(t.Context(), c, request(in))
			require.NoError(t, err)
			want, kind, length := "{\"id\":\"a\"}\n", "application/json", int64(11)
			if i%2 == 1 {
				want, kind, length = "data: one\n\ndata: two\n\ndata: [DONE]\n\n", "text/event-stream; charset=utf-8", -1
			}
			if got != want || resp.Header.Get("Content-Type") != kind || resp.Header.Get("Server") != "uvicorn" || resp.Length != length {
				t.Fatalf("%d: %q %v %d", i, got, resp.Header, resp.Length)
			}
			if i == 3 {
				<-closed
			}
		}
	})
}

// Read returns the available bytes and does not wait for more.
func TestRead_ReturnsAvailableBytes(t *testing.T) {
	t.Parallel()
	forEachClient(t, func(t *testing.T, open opener) {
		next := make(chan string)
		in := server(t, func(_ int, c net.Conn, r *bufio.Reader) {
			if _, _, err := readRequest(r); err != nil {
				return
			}
			_, _ = io.WriteString(c, uvicornHead+"transfer-encoding: chunked\r\n\r\n")
			for e := range next {
				fmt.Fprintf(c, "%x\r\n%s\r\n", len(e), e)
			}
			_, _ = io.WriteString(c, "0\r\n\r\n")
		})
		resp, err := open(t, upstream.Options{}).Do(t.Context(), request(in))
		require.NoError(t, err)
		buf := make([]byte, 16<<10)
		for i := range 20 {
			want := fmt.Sprintf("data: %d\n\n", i)
			next <- want
			n, err := resp.Body.Read(buf)
			require.NoError(t, err)
			require.Equal(t, want, string(buf[:n]))
		}
		close(next)
		if n, err := resp.Body.Read(buf); n != 0 || err != io.EOF {
			t.Fatalf("%d, %v", n, err)
		}
		_ = resp.Body.Close()
	})
}

// Closing an unfinished response closes the connection, which makes the engine stop.
func TestCloseOfAnUnfinishedBody(t *testing.T) {
	t.Parallel()
	forEachClient(t, func(t *testing.T, open opener) {
		left := make(chan error, 1)
		in := server(t, func(_ int, c net.Conn, r *bufio.Reader) {
			if _, _, err := readRequest(r); err != nil {
				return
			}
			_, _ = io.WriteString(c, uvicornHead+"transfer-encoding: chunked\r\n\r\n2\r\nab\r\n")
			_, err := r.ReadByte()
			left <- err
		})
		resp, err := open(t, upstream.Options{}).Do(t.Context(), request(in))
		require.NoError(t, err)
		_ = resp.Body.Close()
		require.Error(t, <-left, "the engine read a byte")
		_, err = resp.Body.Read(make([]byte, 9))
		require.True(t, err != nil && !errors.Is(err, io.EOF), "reading a closed body: %v", err)
	})
}

// A response that arrives before the end of the request's body stops the sending, and the
// connection is not reused.
func TestEarlyAnswer(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"waits", "waits, interim first", "closes", "interim first"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			forEachClient(t, func(t *testing.T, open opener) {
				var conns atomic.Int64
				release := make(chan struct{})
				in := server(t, func(_ int, c net.Conn, r *bufio.Reader) {
					conns.Add(1)
					_, _ = r.Peek(1)
					if how == "interim first" {
						_, _ = io.WriteString(c, "HTTP/1.1 102 Processing\r\n\r\n")
						_, body, err := readRequest(r)
						_, _ = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n%08d", len(body))
						if err == nil {
							_, _ = r.ReadByte()
						}
						return
					}
					answer := "HTTP/1.1 413 Too Large\r\nContent-Length: 5\r\n\r\nlarge"
					if how == "waits, interim first" {
						answer = "HTTP/1.1 100 Continue\r\n\r\n" + answer
					}
					_, _ = io.WriteString(c, answer)
					if how != "closes" {
						<-release
					}
				})
				c := open(t, upstream.Options{})
				body := make([]byte, 16<<20)
				r := request(in)
				r.Body = [][]byte{[]byte("{"), body}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				resp, got, err := fetch(ctx, c, r)
				defer close(release)
				if how == "interim first" {
					require.NoError(t, err)
					require.Equal(t, fmt.Sprintf("%08d", len(body)+1), got)
					return
				}
				if how == "closes" && err != nil {
					// The reset may arrive before the answer is read; then it is the error.
					var e *upstream.Error
					require.True(t, errors.As(err, &e) && e.MaybeTaken, "%v", err)
					return
				}
				require.True(t, err == nil && resp.Status == 413 && got == "large", "%+v %q, %v", resp, got, err)
				_, _, err = fetch(t.Context(), c, request(in))
				require.NoError(t, err)
				require.EqualValues(t, 2, conns.Load(), "connections")
				require.EqualValues(t, 0, c.StaleRetries(), "stale connections")
			})
		})
	}
}

// An engine that exits during a large request causes an error of StageSent.
func TestHalfWrittenRequest(t *testing.T) {
	t.Parallel()
	forEachClient(t, func(t *testing.T, open opener) {
		in := server(t, func(_ int, c net.Conn, r *bufio.Reader) {
			_, _ = io.CopyN(io.Discard, r, 100<<10)
			reset(c)
		})
		r := request(in)
		r.Body = [][]byte{make([]byte, 16<<20)}
		_, _, err := fetch(t.Context(), open(t, upstream.Options{}), r)
		var e *upstream.Error
		require.True(t, errors.As(err, &e) && e.Stage == upstream.StageSent && e.MaybeTaken, "%+v", err)
	})
}

// A request that could smuggle another one is not sent.
func TestBadRequests(t *testing.T) {
	t.Parallel()
	in := server(t, func(_ int, _ net.Conn, _ *bufio.Reader) { t.Error("connected") })
	p := newPool(t, upstream.Options{})
	for name, change := range map[string]func(*upstream.Request){
		"CR LF in a value":   func(r *upstream.Request) { r.Header["X-A"] = []string{"a\r\nHost: b"} },
		"LF in a value":      func(r *upstream.Request) { r.Header["X-A"] = []string{"a\nb"} },
		"NUL in a value":     func(r *upstream.Request) { r.Header["X-A"] = []string{"a\x00"} },
		"LF in a name":       func(r *upstream.Request) { r.Header["X-A\nB"] = []string{"a"} },
		"colon in a name":    func(r *upstream.Request) { r.Header["X-A:"] = []string{"a"} },
		"space in a name":    func(r *upstream.Request) { r.Header["X A"] = []string{"a"} },
		"no name":            func(r *upstream.Request) { r.Header[""] = []string{"a"} },
		"space in the query": func(r *upstream.Request) { r.Path = "/a?b c" },
		"LF in the query":    func(r *upstream.Request) { r.Path = "/a?b\nc" },
		"no path":            func(r *upstream.Request) { r.Path = "" },
		"no slash":           func(r *upstream.Request) { r.Path = "a" },
		"method":             func(r *upstream.Request) { r.Method = "GET /x" },
		"no method":          func(r *upstream.Request) { r.Method = "" },
	} {
		r := request(in)
		change(r)
		_, err := p.Do(t.Context(), r)
		var e *upstream.Error
		assert.True(t, errors.As(err, &e) && e.Stage == upstream.StageNotConnected && !e.MaybeTaken && !e.Refused(),
			"%s: %v", name, err)
	}
}

// The client decides the framing, whatever the caller's header contains.
func TestFraming_IgnoresCallerHeader(t *testing.T) {
	t.Parallel()
	got := make(chan string, 1)
	in := server(t, func(_ int, c net.Conn, r *bufio.Reader) {
		_, _ = r.Peek(1)
		head, _ := r.Peek(r.Buffered()) // the head arrived in one write
		got <- string(head)
		_, _, _ = readRequest(r)
		_, _ = io.WriteString(c, ok)
	})
	r := request(in)
	r.Header = http.Header{
		"content-length": {"1"}, "Content-Length": {"2"}, "Transfer-encoding": {"chunked"}, "HOST": {"evil"},
		"Connection": {"close"}, "Upgrade": {"h2c"}, "Trailer": {"X"}, "x-odd-Case": {"kept"},
	}
	_, b, err := fetch(t.Context(), newPool(t, upstream.Options{}), r)
	require.True(t, err == nil && b == "ok", "%q, %v", b, err)
	want := "POST /v1/completions?x=1 HTTP/1.1\r\nHost: " + in.Address + "\r\nx-odd-Case: kept\r\nContent-Length: 7\r\n\r\n{\"a\":1}"
	require.Equal(t, want, <-got)
}
