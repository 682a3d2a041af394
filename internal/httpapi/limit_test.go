package httpapi_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/httpapi"
	"github.com/pdmesh/pdmesh/internal/httpapi/apikeys"
)

// At the connection limit, health checks and operators' routes are served,
// and all other requests are refused in the format of their API.
func TestConnectionLimit(t *testing.T) {
	t.Parallel()
	for path, exempt := range map[string]bool{
		"/health": true, "/ping": true, "/livez": true, "/readyz": true, "/healthcheck": true, "/version": true, "/": true, "/metrics": true,
		"/status": true, "/instances/add": true, "/instances/drain": true, "/route": true, "/log-level": true, "/v1/load_lora_adapter": true,
		"/v1/completions": false, "/v1/models": false, "/dashboard/events": false, "/instances/unknown": false, "/health/x": false,
	} {
		got := httpapi.ExemptFromLimit(httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
		assert.True(t, got == exempt, "%s: exempt %t", path, got)
	}
	const message = "the proxy has reached its limit for open connections (--max-connections)"
	for path, want := range map[string]string{
		"/v1/chat/completions":      `{"error":{"message":"` + message + `","type":"ServiceUnavailableError","param":null,"code":503}}`,
		"/v1/messages":              `{"type":"error","error":{"type":"ServiceUnavailableError","message":"` + message + `"}}`,
		"/v1/messages/count_tokens": `{"type":"error","error":{"type":"ServiceUnavailableError","message":"` + message + `"}}`,
	} {
		w := httptest.NewRecorder()
		httpapi.RefuseAtLimit(httpapi.CORS{})(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, nil))
		if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") != "1" || w.Body.String() != want {
			t.Errorf("%s: %d %v %s", path, w.Code, w.Header(), w.Body)
		}
	}
}

// Pages of an allowed origin can read the refusal; this requires the answer to their preflight, too.
func TestConnectionLimit_CORS(t *testing.T) {
	t.Parallel()
	const origin = "https://chat.example"
	request := func(method, path string) *http.Request {
		r := httptest.NewRequestWithContext(t.Context(), method, path, nil)
		r.Header.Set("Origin", origin)
		if method == http.MethodOptions {
			r.Header.Set("Access-Control-Request-Method", http.MethodPost)
		}
		return r
	}
	assert.True(t, httpapi.ExemptFromLimit(request(http.MethodOptions, "/v1/completions")),
		"a preflight request is refused")
	for _, tc := range []struct {
		path, allowed, want string
	}{
		{"/v1/completions", origin, origin}, {"/v1/completions", "https://other.example", ""}, {httpapi.DashboardEvents, origin, ""},
	} {
		w := httptest.NewRecorder()
		httpapi.RefuseAtLimit(httpapi.CORS{Origins: []string{tc.allowed}})(w, request(http.MethodPost, tc.path))
		if got := w.Header().Get("Access-Control-Allow-Origin"); w.Code != http.StatusServiceUnavailable || got != tc.want {
			t.Errorf("%s, allowed to %s: %d, Access-Control-Allow-Origin %q, want %q", tc.path, tc.allowed, w.Code, got, tc.want)
		}
	}
}

// slowLink is a client on a link that transfers 4 KiB every 40 ms, until the read deadline.
type slowLink struct {
	*httptest.ResponseRecorder

	deadline time.Time
	left     int // bytes
}

func (l *slowLink) SetReadDeadline(t time.Time) error {
	l.deadline = t
	return nil
}

func (l *slowLink) Read(p []byte) (int, error) {
	if l.left == 0 {
		return 0, io.EOF
	}
	time.Sleep(40 * time.Millisecond)
	if time.Now().After(l.deadline) {
		return 0, os.ErrDeadlineExceeded
	}
	n := min(len(p), 4<<10, l.left)
	l.left -= n
	return n, nil
}

// The rest of a refused upload is read for at most 10 s. Otherwise, the connection
// would be reset, and a client that sends everything first would not see the answer.
func TestRefusedSlowUpload(t *testing.T) {
	t.Parallel()
	for size, want := range map[int]bool{800 << 10: true, 2 << 20: false} {
		synctest.Test(t, func(t *testing.T) {
			l := &slowLink{httptest.NewRecorder(), time.Time{}, size}
			httpapi.RefuseAtLimit(httpapi.CORS{})(l, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/completions", l))
			if whole := l.left == 0; whole != want || !l.Flushed {
				t.Errorf("%d of %d bytes were not read, flushed %t", l.left, size, l.Flushed)
			}
		})
	}
}

// oneConn is a listener that accepts one connection.
type oneConn struct {
	net.Listener

	conns chan net.Conn
}

func (l oneConn) Accept() (net.Conn, error) {
	if c, ok := <-l.conns; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (l oneConn) Close() error {
	close(l.conns)
	return nil
}

func (l oneConn) Addr() net.Addr { return &net.TCPAddr{} }

// served returns a connection to a server of h, in the bubble of a test.
func served(t *testing.T, h http.Handler) net.Conn {
	t.Helper()
	l := oneConn{conns: make(chan net.Conn, 1)}
	server, client := net.Pipe()
	l.conns <- server
	s := &http.Server{Handler: h}
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() {
		_ = client.Close()
		_ = s.Close()
		<-done
	})
	return client
}

// A request is answered without its body, and promptly if its connection ends, as beyond the limit.
func TestMissingBody(t *testing.T) {
	t.Parallel()
	router := httpapi.NewRouter(deps(), true)
	for _, head := range []string{"GET /health", "GET /livez", "GET /livez HTTP/1.1\r\nExpect: 100-continue", "GET /status", "HEAD /health", "DELETE /nowhere", "GET /tokenizer_info", "GET /v1/models", "GET /v1/models/m", "GET /v1/responses/x", "POST /instances/add", "PUT /models/routes/m", "POST /ping", "POST /status", "POST /v1/responses/x/cancel"} {
		synctest.Test(t, func(t *testing.T) {
			closes, began := head == "GET /health", time.Now()
			client := served(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if closes {
					w.Header().Set("Connection", "close")
				}
				router.ServeHTTP(w, r)
			}))
			line, more, _ := strings.Cut(head, " HTTP/1.1")
			go func() {
				_, _ = io.WriteString(client, line+" HTTP/1.1\r\nHost: x\r\nX-Api-Key: secret\r\nContent-Type: application/json\r\nContent-Length: 5"+more+"\r\n\r\n")
			}()
			in := bufio.NewReader(client)
			for {
				method, _, _ := strings.Cut(line, " ")
				resp, err := http.ReadResponse(in, &http.Request{Method: method})
				if err != nil {
					t.Errorf("%s: %v", head, err)
					return
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				took := time.Since(began)
				assert.False(t, closes && took > time.Second, "%s: took %s", head, took)
				if resp.StatusCode != http.StatusContinue {
					return
				}
			}
		})
	}
}

// A trailer that arrives while a request is already served changes nothing that its handlers read.
func TestLateTrailer(t *testing.T) {
	t.Parallel()
	d := deps()
	var err error
	d.AdminKey, err = apikeys.OpenAdmin("", keyFile(t, "secret ann read"), d.Log, nil)
	require.NoError(t, err)
	router := httpapi.NewRouter(d, false)
	round := func(t *testing.T) {
		client := served(t, router)
		go func() {
			_, _ = io.WriteString(client, "GET /config HTTP/1.1\r\nHost: x\r\nX-Api-Key: secret\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n")
			time.Sleep(10 * time.Second) // when the request is served
			_, _ = io.WriteString(client, "X-Sum: 1\r\n\r\n")
		}()
		resp, err := http.ReadResponse(bufio.NewReader(client), nil)
		require.NoError(t, err)
		assert.Equal(t, http.StatusOK, resp.StatusCode)
	}
	for range 10 { // the race detector needs a read next to the write
		synctest.Test(t, round)
	}
}
