package bootstrap_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/engine/bootstrap"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// serve starts a server that answers GET /query, and returns its host:port.
func serve(t *testing.T, status int, body string) string {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /query", func(w http.ResponseWriter, _ *http.Request) {
		if status/100 == 3 {
			w.Header().Set("Location", "/elsewhere")
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	})
	mux.HandleFunc("GET /elsewhere", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"0":{"engine_id":"e","worker_addr":{}}}`))
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

func TestQuery(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		status int
		body   string
		want   map[string]string
		is     error
		says   string
	}{
		{"one rank", 200, `{"0":{"engine_id":"e","worker_addr":{"0":{"0":"tcp://h:1"}}}}`, map[string]string{"0": "e"}, nil, ""},
		{"several", 200, ` {"0":{"engine_id":"e_dp0","worker_addr":{}},"12":{"engine_id":"e_dp12"}} `, map[string]string{"0": "e_dp0", "12": "e_dp12"}, nil, ""},
		{"members that are not known", 200, `{"0":{"engine_id":"e","worker_addr":{},"block_size":[16]}}`, map[string]string{"0": "e"}, nil, ""},
		{"nothing registered", 200, `{}`, nil, bootstrap.ErrEmpty, "no worker"},
		{"null", 200, `null`, nil, bootstrap.ErrForm, "null"},
		{"a list", 200, `[]`, nil, bootstrap.ErrForm, "[]"},
		{"cut", 200, `{"0":{"engine_id":"e"`, nil, bootstrap.ErrForm, "engine_id"},
		{"something behind it", 200, `{"0":{"engine_id":"e"}} {}`, nil, bootstrap.ErrForm, "} {}"},
		{"an older vLLM", 200, `{"e":{"0":{"0":{"0":"tcp://h:1"}}}}`, nil, bootstrap.ErrForm, "before 0.16"},
		{"a rank with a sign", 200, `{"+1":{"engine_id":"e"}}`, nil, bootstrap.ErrForm, "not a data-parallel rank"},
		{"no id", 200, `{"0":{"worker_addr":{}}}`, nil, bootstrap.ErrForm, "rank 0 has no usable engine_id"},
		{"an empty id", 200, `{"0":{"engine_id":""}}`, nil, bootstrap.ErrForm, "rank 0"},
		{"a number", 200, `{"0":{"engine_id":5}}`, nil, bootstrap.ErrForm, "engine_id"},
		{"an id to fool a terminal", 200, `{"0":{"engine_id":"\u001b[2J"}}`, nil, bootstrap.ErrForm, "rank 0"},
		{"a long id", 200, `{"0":{"engine_id":"` + strings.Repeat("e", 300) + `"}}`, nil, bootstrap.ErrForm, "rank 0"},
		{"a worker without address", 200, `{"0":{"engine_id":"e","worker_addr":{"0":"tcp://h:1"}}}`, nil, bootstrap.ErrForm, "worker_addr"},
		{"very long", 200, `{"0":{"engine_id":"e","x":"` + strings.Repeat("x", 1<<20) + `"}}`, nil, bootstrap.ErrForm, "more than"},
		{"refused", 404, "\x1b[2Jgone", nil, bootstrap.ErrForm, `status 404: \u001b[2Jgone`},
		{"sent elsewhere", 307, "", nil, bootstrap.ErrForm, "status 307"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			address := serve(t, tt.status, tt.body)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // the default is too short for a busy machine
			defer cancel()
			got, err := bootstrap.Query(ctx, nil, address)
			d := cmp.Diff(tt.want, got)
			assert.True(t, d == "" && errors.Is(err, tt.is), "%v, %s", err, d)
			if err != nil && (!strings.Contains(err.Error(), tt.says) || !strings.Contains(err.Error(), "bootstrap server "+address) || strings.Contains(err.Error(), "\x1b")) {
				t.Errorf("the error is %v", err)
			}
		})
	}
}

func TestManyRanks(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	for i := range 1025 {
		b.WriteString(`,"` + strconv.Itoa(i) + `":{"engine_id":"e"}`)
	}
	_, err := bootstrap.Query(t.Context(), nil, serve(t, 200, "{"+b.String()[1:]+"}"))
	assert.True(t, errors.Is(err, bootstrap.ErrForm) && strings.Contains(err.Error(), "1024 ranks"), "%v", err)
}

// The simulated engine answers in the expected format, in each incarnation.
func TestQueryOfAnEngine(t *testing.T) {
	t.Parallel()
	s := fakevllm.StartTest(t, fakevllm.Options{Mode: fakevllm.Mooncake, Role: fakevllm.RolePrefill})
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Bootstrap()))
	for range 2 {
		got, err := bootstrap.Query(t.Context(), nil, address)
		d := cmp.Diff(map[string]string{"0": s.EngineID()}, got)
		assert.True(t, d == "" && err == nil, "%v, %s", err, d)
		s.Kill()
		_, err = bootstrap.Query(t.Context(), nil, address)
		assert.Equal(t, "bootstrap server "+address+": dial tcp "+address+": connect: connection refused", fmt.Sprint(err))
		require.NoError(t, s.Restart(t.Context()))
	}
}

// The caller's dialer decides which addresses are allowed, and the caller's context limits the time.
func TestQuery_CallerDialerAndDeadline(t *testing.T) {
	t.Parallel()
	forbidden := errors.New("forbidden")
	tr := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return nil, forbidden }}
	_, err := bootstrap.Query(t.Context(), &http.Client{Transport: tr}, "127.0.0.1:1")
	assert.ErrorIs(t, err, forbidden)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = bootstrap.Query(ctx, nil, serve(t, 200, `{}`))
	assert.ErrorIs(t, err, context.Canceled)
	for _, address := range []string{"", "nowhere", "http://127.0.0.1:1", "127.0.0.1:1/x"} {
		if _, err := bootstrap.Query(t.Context(), nil, address); err == nil {
			t.Errorf("%q was asked", address)
		}
	}
}
