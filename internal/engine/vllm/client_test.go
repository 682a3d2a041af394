package vllm

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

const twoModels = `{"object":"list","data":[
 {"id":"qwen","object":"model","root":"/models/Qwen2.5-7B","parent":null,"max_model_len":32768},
 {"id":"qwen-lora","object":"model","root":null,"parent":"qwen","max_model_len":null}]}`

const metricsText = `# HELP vllm:num_requests_running Number of requests.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a}b \" c"} 2.0
vllm:num_requests_running{engine="1",model_name="qwen"} 1.0 1700000000000
vllm:num_requests_waiting{engine="0",model_name="qwen"} 4
vllm:num_requests_waiting_by_reason{engine="0",reason="deferred"} 99
vllm:request_success_total{finished_reason="stop"} 10
vllm:request_success_total{finished_reason="abort"} 3
vllm:kv_cache_usage_perc{engine="0"} 0.5
vllm:kv_cache_usage_perc{engine="1"} 0.25
vllm:gpu_cache_usage_perc{engine="0"} 0.9
vllm:nixl_num_failed_transfers_total{engine="0"} 0
process_start_time_seconds 1.70000000025e+09
nonsense
vllm:num_requests_running{engine="2" 7
vllm:num_requests_running NaN
`

func engine(t *testing.T, routes map[string]http.HandlerFunc) string {
	t.Helper()
	mux := http.NewServeMux()
	for path, h := range routes {
		mux.HandleFunc(path, h)
	}
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	return srv.URL
}

func says(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func TestFacts(t *testing.T) {
	t.Parallel()
	var keys []string
	base := engine(t, map[string]http.HandlerFunc{
		"/health":  says(200, ""),
		"/version": says(200, `{"version":"0.12.0"}`),
		"/metrics": says(200, metricsText),
		"/v1/models": func(w http.ResponseWriter, r *http.Request) {
			keys = append(keys, r.Header.Get("Authorization"))
			_, _ = io.WriteString(w, twoModels)
		},
	})
	c := New("sk-1")
	require.NoError(t, c.Health(t.Context(), base))
	want := instance.Facts{
		Models:      []string{"qwen", "qwen-lora"},
		Roots:       []string{"/models/Qwen2.5-7B", ""},
		MaxModelLen: 32768, Version: "0.12.0", DPSize: 2, Transfer: instance.TransferNIXL,
		StartedAt: time.Unix(1700000000, 250e6).UTC(),
	}
	in := &instance.Instance{Key: instance.Key{Role: instance.Prefill, Address: strings.TrimPrefix(base, "http://")}}
	got, err := c.Probe(t.Context(), in)
	require.NoError(t, err)
	assert.Empty(t, cmp.Diff(want, got))
	assert.Empty(t, cmp.Diff([]string{"Bearer sk-1"}, keys))
}

func TestFactsWithModelsOnly(t *testing.T) {
	t.Parallel()
	base := engine(t, map[string]http.HandlerFunc{
		"/v1/models": says(200, `{"data":[{"id":"m","max_model_len":"long"}]}`),
	})
	got, err := (&Client{}).Facts(t.Context(), base+"/")
	require.NoError(t, err)
	assert.Empty(t, cmp.Diff(instance.Facts{Models: []string{"m"}, Roots: []string{""}}, got))
}

func TestStats(t *testing.T) {
	t.Parallel()
	base := engine(t, map[string]http.HandlerFunc{"/metrics": says(200, metricsText)})
	got, err := New("").Stats(t.Context(), base)
	require.NoError(t, err)
	want := Stats{
		Running: 3, Waiting: 4, Finished: 13, Complete: true, Ranks: 2, NIXL: true,
		StartedAt: time.Unix(1700000000, 250e6).UTC(),
	}
	assert.Empty(t, cmp.Diff(want, got))
	assert.False(t, got.Idle(), "busy engine called idle")
}

func TestParseStats(t *testing.T) {
	t.Parallel()
	long := `vllm:num_requests_running{model_name="` + strings.Repeat("x", 40<<10) + "\"} 5\n"
	for _, tc := range []struct {
		name, text string
		want       Stats
		idle       bool
	}{
		{name: "empty is unknown, not idle"},
		{name: "idle", text: "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n", want: Stats{Complete: true, Ranks: 1}, idle: true},
		{name: "half is unknown", text: "vllm:num_requests_running 0\n", want: Stats{Ranks: 1}},
		{name: "NIXL", text: "# TYPE vllm:nixl_num_failed_transfers counter\nvllm:nixl_num_failed_transfers_total{engine=\"0\",model_name=\"m\"} 0.0\n", want: Stats{NIXL: true}},
		{name: "a comment is no NIXL", text: "# vllm:nixl_num_failed_transfers_total 1\n"},
		{name: "ranks", text: "vllm:num_requests_running{engine=\"0\"} 1\nvllm:num_requests_running{engine=\"1\"} 2\n", want: Stats{Running: 3, Ranks: 2}},
		{name: "no final newline", text: "vllm:num_requests_waiting 0\nvllm:num_requests_running{} 1", want: Stats{Running: 1, Complete: true, Ranks: 1}},
		{name: "CRLF", text: "vllm:num_requests_waiting 2\r\nvllm:num_requests_running 0\r\n", want: Stats{Waiting: 2, Complete: true, Ranks: 1}},
		{name: "overlong line skipped", text: long + "vllm:num_requests_waiting 1\n", want: Stats{Waiting: 1}},
		{name: "absurd start time", text: "process_start_time_seconds 1e300\n"},
		{name: "negative start time", text: "process_start_time_seconds -1\n"},
		{name: "too many fields", text: "vllm:num_requests_running 1 2 3\n"},
		{name: "binary", text: "\x00\xff\xfe{\n{\n}\n \n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			p, err := parsePage(strings.NewReader(tc.text), maxMetricsBytes)
			require.NoError(t, err)
			got := p.stats()
			assert.Empty(t, cmp.Diff(tc.want, got))
			assert.Equal(t, tc.idle, got.Idle())
		})
	}
	_, err := parsePage(strings.NewReader(strings.Repeat("a 1\n", 100)), 100)
	assert.ErrorIs(t, err, ErrTooLarge, "over the limit")
	_, err = parsePage(strings.NewReader("a 1\n"), 4)
	assert.NoError(t, err, "at the limit")
}

func TestErrors(t *testing.T) {
	t.Parallel()
	base := engine(t, map[string]http.HandlerFunc{
		"/v1/models": says(401, `{"error":"Unauthorized"}`),
		"/health":    says(503, ""),
		"/metrics": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/version", http.StatusTemporaryRedirect)
		},
		"/version": says(200, "<html>\x1b[31m"),
	})
	big := engine(t, map[string]http.HandlerFunc{
		"/v1/models": says(200, `{"data":[{"id":"`+strings.Repeat("x", maxModelsBytes)+`"}]}`),
		"/metrics": func(w http.ResponseWriter, _ *http.Request) {
			line := strings.Repeat("a 1\n", 1<<18)
			for range 9 {
				_, _ = io.WriteString(w, line)
			}
		},
		"/health":  func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"/version": says(418, "short\nand stout"),
	})
	empty := engine(t, map[string]http.HandlerFunc{"/v1/models": says(200, `{"data":[{"id":""}]}`)})
	refused := closedPort(t)
	raw := rawServer(t, "+OK not http\r\n")

	c, keyed := New(""), New("k")
	c.Timeout = time.Minute // the large answers take long on a busy machine
	models := func(c *Client) func(string) error {
		return func(b string) error { _, err := c.Models(t.Context(), b); return err }
	}
	version := func(b string) error { _, err := c.Version(t.Context(), b); return err }
	stats := func(b string) error { _, err := c.Stats(t.Context(), b); return err }
	health := func(b string) error { return c.Health(t.Context(), b) }
	failing := func(dial error) func(string) error {
		return func(b string) error {
			tr := SecureTransport(nil)
			tr.DialContext = func(context.Context, string, string) (net.Conn, error) { return nil, dial }
			return (&Client{HTTP: &http.Client{Transport: tr}}).Health(t.Context(), b)
		}
	}
	for _, tc := range []struct {
		name string
		call func(string) error
		base string
		is   error
		text string
	}{
		{"no key", models(c), base, nil, "/v1/models: HTTP 401: the engine wants an API key (--engine-api-key)"},
		{"wrong key", models(keyed), base, nil, "HTTP 401: the engine refuses the API key"},
		{"engine dead", health, base, nil, "HTTP 503: the engine reports that it is dead"},
		{"redirect", stats, base, nil, "HTTP 307: redirects are not followed"},
		{"no JSON, escaped", version, base, ErrNotVLLM, `<html>\u001b[31m`},
		{"no such route", version, empty, nil, "HTTP 404: no such route: is it a vLLM server?"},
		{"other status, escaped", version, big, nil, `HTTP 418 (short\nand stout)`},
		{"models too large", models(c), big, ErrTooLarge, ""},
		{"a proxy", models(c), engine(t, map[string]http.HandlerFunc{"/v1/models": func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get(instance.ProbeHeader) != "" {
				w.WriteHeader(http.StatusLoopDetected)
			}
		}}), ErrNotVLLM, "is a pdmesh proxy; use the address of vLLM"},
		{"metrics too large", stats, big, ErrTooLarge, ""},
		{"closed", health, big, ErrClosed, ""},
		{"no model", models(c), empty, ErrNoModels, ""},
		{"refused", health, "http://" + refused, ErrRefused, "connection refused: is vLLM running at " + refused + "?"},
		{"not HTTP", health, "http://" + raw, ErrNotVLLM, "does not speak HTTP"},
		{"https on http", health, strings.Replace(base, "http", "https", 1), ErrNotVLLM, "use http://"},
		{"no such host", failing(&net.DNSError{Err: "no such host", Name: "gpu-7", IsNotFound: true}), "http://gpu-7:1", nil, "cannot resolve gpu-7:1: no such host"},
		{"no name server", failing(&net.DNSError{Err: "server misbehaving", Name: "gpu-7", IsTemporary: true}), "http://gpu-7:1", ErrNotSent, "cannot resolve gpu-7:1: server misbehaving"},
		{"a slow name server", failing(&net.DNSError{Err: "i/o timeout", Name: "gpu-7", IsTimeout: true}), "http://gpu-7:1", ErrNotSent, "cannot resolve gpu-7:1: i/o timeout"},
		{"no descriptor", failing(&net.OpError{Op: "dial", Err: os.NewSyscallError("socket", syscall.EMFILE)}), "http://gpu-7:1", ErrNotSent, "too many open files"},
		{"no scheme", health, "127.0.0.1:1", ErrBase, "write http://host:port"},
		{"other scheme", health, "ftp://h:1", ErrBase, ""},
		{"credentials", health, "http://u:secret@h:1", ErrBase, "credentials"},
		{"query", health, "http://h:1/?a=b", ErrBase, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := tc.call(tc.base)
			require.Error(t, err, "no error")
			assert.False(t, tc.is != nil && !errors.Is(err, tc.is), "%v is not %v", err, tc.is)
			assert.False(t, tc.is != ErrNotSent && errors.Is(err, ErrNotSent), "%v: it was asked", err)
			assert.Contains(t, err.Error(), tc.text, "%q lacks %q", err, tc.text)
			assert.NotContains(t, err.Error(), "secret")
			assert.False(t, strings.ContainsAny(err.Error(), "\x1b\n"), "unsafe text")
		})
	}
}

func TestDeadline(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	base := engine(t, map[string]http.HandlerFunc{
		"/health": func(http.ResponseWriter, *http.Request) { <-release },
		"/version": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"version":`)
			w.(http.Flusher).Flush()
			<-release
		},
	})
	defer close(release)
	c := &Client{Timeout: 50 * time.Millisecond}
	assert.ErrorIs(t, c.Health(t.Context(), base), ErrTimeout, "no headers")
	_, err := c.Version(t.Context(), base)
	assert.ErrorIs(t, err, ErrTimeout, "body stalls")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	assert.ErrorIs(t, c.Health(ctx, base), context.Canceled, "caller gave up")
}

// slowly responds to every request after a delay, unless the request is canceled.
type slowly time.Duration

func (d slowly) RoundTrip(r *http.Request) (*http.Response, error) {
	timer := time.NewTimer(time.Duration(d))
	defer timer.Stop()
	select {
	case <-timer.C:
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: r}, nil
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

// A busy engine answers /health late. The caller chooses the time limit; its deadline is the only one.
func TestHealth_CallerDeadline(t *testing.T) {
	t.Parallel()
	ours := errors.New("the reason of the caller")
	for _, tc := range []struct {
		name    string
		limit   time.Duration // of the caller; 0: none
		timeout time.Duration // of the client
		want    error
		text    string
	}{
		{"a long deadline", time.Minute, 0, nil, ""},
		{"a short deadline", 5 * time.Second, 0, ErrTimeout, "no answer from gpu-7:8100 within 5s"},
		{"no deadline", 0, 0, ErrTimeout, "within 2s"},
		{"the client's own limit", time.Minute, 3 * time.Second, ErrTimeout, "within 3s"},
		{"a deadline before the client's own limit", time.Second, 3 * time.Second, ErrTimeout, "within 1s"},
		{"a cause", -1, 0, ours, "the reason of the caller"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := New("")
				c.HTTP.Transport, c.Timeout = slowly(10*time.Second), tc.timeout
				ctx, cancel := context.WithCancel(t.Context())
				switch {
				case tc.limit > 0:
					ctx, cancel = context.WithTimeout(t.Context(), tc.limit)
				case tc.limit < 0:
					var because context.CancelCauseFunc
					ctx, because = context.WithCancelCause(t.Context())
					cancel = func() { because(nil) }
					time.AfterFunc(time.Second, func() { because(ours) })
				}
				defer cancel()
				err := c.Health(ctx, "http://gpu-7:8100")
				require.ErrorIs(t, err, tc.want)
				assert.False(t, err != nil && !strings.Contains(err.Error(), tc.text), "%q lacks %q", err, tc.text)
			})
		})
	}
}

func TestRedirects_CallerPolicyIgnored(t *testing.T) {
	t.Parallel()
	reached := false
	other := engine(t, map[string]http.HandlerFunc{"/v1/models": func(http.ResponseWriter, *http.Request) { reached = true }})
	base := engine(t, map[string]http.HandlerFunc{"/v1/models": func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other+"/v1/models", http.StatusFound)
	}})
	c := &Client{HTTP: &http.Client{Transport: SecureTransport(nil)}, APIKey: "k"}
	_, err := c.Models(t.Context(), base)
	var status *StatusError
	assert.True(t, errors.As(err, &status) && status.Code == http.StatusFound && !reached,
		"err %v, other server reached: %v", err, reached)
}

// closedPort returns an address on which no process listens. Its listener stays bound
// without accepting until the port is known, so that no other process gets the port.
func closedPort(t *testing.T) string {
	t.Helper()
	l := testkit.Listen(t)
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

func rawServer(t *testing.T, answer string) string {
	t.Helper()
	return testkit.RawServer(t, func(_ int, c net.Conn) {
		_, _ = c.Read(make([]byte, 1024))
		_, _ = io.WriteString(c, answer)
	})
}
