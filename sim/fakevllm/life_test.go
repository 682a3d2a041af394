package fakevllm_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// TestAborts: a client that goes away is noticed wherever the request is, and
// nothing more is generated for it.
func TestAborts(t *testing.T) {
	t.Parallel()
	const hour = time.Hour
	for _, tt := range []struct {
		name string
		o    fakevllm.Options
		body string
		mark string // what is read before leaving
		busy bool   // another request holds the only place
	}{
		{"streaming", fakevllm.Options{ITL: hour}, streamed, `"text":`, false},
		{"streaming, before the first token", fakevllm.Options{TTFT: hour}, streamed, "\r\n\r\n", false},
		{"one piece, prefilling", fakevllm.Options{TTFT: hour}, `{"prompt":"x"}`, "", false},
		{"one piece, generating", fakevllm.Options{ITL: hour}, `{"prompt":"x","ignore_eos":true}`, "", false},
		{"queued", fakevllm.Options{MaxRunning: 1, TTFT: hour}, `{"prompt":"x"}`, "", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := fakevllm.StartTest(t, tt.o)
			if tt.busy {
				dialRaw(t, s).send(t, "/v1/completions", "busy", `{"prompt":"x"}`)
				eventually(t, func() error { return want("running", s.Counters().Running, 1) })
			}
			r := dialRaw(t, s)
			r.send(t, "/v1/completions", "left", tt.body)
			if tt.mark != "" {
				r.until(t, tt.mark)
			}
			eventually(t, func() error {
				c := s.Counters()
				if tt.busy {
					return want("waiting", c.Waiting, 1)
				}
				return want("running", c.Running, 1)
			})
			_ = r.conn.Close()
			eventually(t, func() error { return want("aborted", s.Counters().Aborted, 1) })
			eventually(t, func() error {
				c := s.Counters()
				if tt.busy {
					return want("waiting", c.Waiting, 0)
				}
				return want("running", c.Running, 0)
			})
			got := s.Aborted()
			assert.True(t, len(got) == 1 && got[0] == "cmpl-left", "aborted %q", got)
			if got := s.Counters(); got.GenerationTokens > 1 || got.Completed != 0 {
				t.Errorf("%+v", got)
			}
		})
	}
}

// TestAbortAtFullSpeed: without delays the writes fail at some point.
func TestAbortAtFullSpeed(t *testing.T) {
	t.Parallel()
	s := fakevllm.StartTest(t, fakevllm.Options{})
	r := dialRaw(t, s)
	r.send(t, "/v1/completions", "left", `{"prompt":"x","max_tokens":1000000,"ignore_eos":true,"stream":true}`)
	r.until(t, `"text":`)
	_ = r.conn.Close()
	eventually(t, func() error { return want("aborted", s.Counters().Aborted, 1) })
	got := s.Counters()
	assert.True(t, got.GenerationTokens < 1000000 && got.Running == 0, "%+v", got)
}

func TestQueueAdvances(t *testing.T) {
	t.Parallel()
	s := fakevllm.StartTest(t, fakevllm.Options{MaxRunning: 2, TTFT: time.Millisecond})
	c := client(t)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() { post(t, c, s.URL()+"/v1/completions", "", `{"prompt":"x"}`) })
	}
	wg.Wait()
	got := s.Counters()
	assert.True(t, got.Completed == 20 && got.Running == 0 && got.Waiting == 0, "%+v", got)
}

// A test can start an engine at the address of one that was closed, although a process that is
// being forked still has the closed listener.
func TestStartWhileAddressIsInUse(t *testing.T) {
	t.Parallel()
	old, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	time.AfterFunc(100*time.Millisecond, func() { _ = old.Close() })
	fakevllm.StartTest(t, fakevllm.Options{Addr: old.Addr().String()})
}

func TestKillAndRestart(t *testing.T) {
	t.Parallel()
	s := fakevllm.StartTest(t, fakevllm.Options{Mode: fakevllm.NIXL, ITL: time.Hour})
	before, address := s.EngineID(), s.Address()
	stream, idle := dialRaw(t, s), dialRaw(t, s)
	idle.send(t, "/v1/completions", "x", `{"prompt":"x","max_tokens":1}`)
	idle.until(t, `"metrics":null}`)
	stream.send(t, "/v1/completions", "x", streamed)
	stream.until(t, `"text":`)
	if err := s.Restart(t.Context()); err == nil {
		t.Error("a running engine was restarted")
	}
	s.Kill()
	for _, r := range []*raw{stream, idle} {
		if _, err := r.rest(); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("a connection of a killed engine ended with %v", err)
		}
	}
	c := client(t)
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL()+"/health", nil)
	if resp, err := c.Do(req); err == nil {
		_ = resp.Body.Close()
		t.Error("a killed engine answers")
	} else if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("error of a killed engine: %v", err)
	}
	require.NoError(t, s.Restart(t.Context()))
	assert.True(t, s.EngineID() != before && s.Address() == address,
		"engine %s on %s after %s on %s", s.EngineID(), s.Address(), before, address)
	if r := get(t, c, s.URL()+"/health"); r.status != 200 {
		t.Errorf("health is %d after the restart", r.status)
	}
	got := s.Counters()
	assert.True(t, got.Aborted == 0 && got.Requests == 2, "%+v", got)
	s.Close()
	if err := s.Restart(t.Context()); err == nil {
		t.Error("a closed engine was restarted")
	}
}

func TestShutdownLetsRequestsFinish(t *testing.T) {
	t.Parallel()
	s := fakevllm.StartTest(t, fakevllm.Options{ITL: 5 * time.Millisecond})
	r := dialRaw(t, s)
	r.send(t, "/v1/completions", "x", streamed)
	r.until(t, `"text":`)
	require.NoError(t, s.Shutdown(t.Context()))
	rest, _ := r.rest()
	require.Contains(t, rest, "data: [DONE]")
}

func TestIdleConnections(t *testing.T) {
	t.Parallel()
	s := fakevllm.StartTest(t, fakevllm.Options{IdleTimeout: 20 * time.Millisecond})
	r := dialRaw(t, s)
	r.send(t, "/v1/completions", "x", `{"prompt":"x"}`)
	if rest, err := r.rest(); err != nil || !strings.HasSuffix(rest, "}") {
		t.Errorf("%q, %v", rest, err)
	}
	slow := fakevllm.StartTest(t, fakevllm.Options{})
	r = dialRaw(t, slow)
	r.send(t, "/v1/completions", "x", `{"prompt":"x"}`)
	r.until(t, `"metrics":null}`)
	eventually(t, func() error { // the server needs a moment to turn idle
		slow.CloseIdle()
		require.NoError(t, r.conn.SetReadDeadline(time.Now().Add(20*time.Millisecond)))
		if _, err := r.in.ReadByte(); !errors.Is(err, io.EOF) {
			return fmt.Errorf("idle connection: %w", err)
		}
		return nil
	})
}

func TestHeaderLimit(t *testing.T) {
	t.Parallel()
	s := fakevllm.StartTest(t, fakevllm.Options{})
	for _, tt := range []struct {
		size, status int
	}{{40 << 10, 200}, {80 << 10, 431}} {
		r := dialRaw(t, s)
		if _, err := fmt.Fprintf(r.conn, "GET /health HTTP/1.1\r\nHost: x\r\nX-Big: %s\r\nConnection: close\r\n\r\n", strings.Repeat("x", tt.size)); err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(r.in).ReadString('\n')
		assert.True(t, err == nil && strings.Contains(line, fmt.Sprint(tt.status)),
			"%d bytes of header: %q, %v", tt.size, line, err)
	}
}

// TestHalfBody: a client that dies while it sends is no request.
func TestHalfBody(t *testing.T) {
	t.Parallel()
	s := fakevllm.StartTest(t, fakevllm.Options{})
	r := dialRaw(t, s)
	if _, err := fmt.Fprint(r.conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{\"prom"); err != nil {
		t.Fatal(err)
	}
	_ = r.conn.Close()
	eventually(t, func() error { return want("aborted", s.Counters().Aborted, 1) })
	got := s.Counters()
	assert.EqualValues(t, 0, got.Requests, "%+v", got)
}

func TestChunkedBody(t *testing.T) {
	t.Parallel()
	s := fakevllm.StartTest(t, fakevllm.Options{})
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL()+"/v1/completions", io.MultiReader(strings.NewReader(`{"prompt":`), strings.NewReader(`"x"}`)))
	req.Header.Set("Content-Type", "application/json")
	if r := do(t, client(t), req); r.status != 200 || string(s.Requests()[0].Body) != `{"prompt":"x"}` {
		t.Errorf("%d, %s", r.status, s.Requests()[0].Body)
	}
}
