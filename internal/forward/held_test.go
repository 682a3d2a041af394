package forward_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/forward/relay"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// waitForHeld waits until ok accepts the memory held by the bodies in flight.
func (r *rig) waitForHeld(what string, ok func(held int64) bool) {
	r.t.Helper()
	eventually(r.t, what, func() bool {
		held, _, _ := r.handler.BodyMemory()
		return ok(held)
	})
}

// sendRaw opens a connection to the proxy and sends the beginning of a request.
func (r *rig) sendRaw(begin string) (*net.TCPConn, *bufio.Reader) {
	r.t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(r.URL, "http://"))
	require.NoError(r.t, err)
	r.t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(waitLimit))
	_, err = io.WriteString(c, begin)
	require.NoError(r.t, err)
	return c.(*net.TCPConn), bufio.NewReader(c)
}

// beginBody sends a request with only the first bytes of its body.
func (r *rig) beginBody(announced, sent int, chunked bool) (net.Conn, *bufio.Reader) {
	r.t.Helper()
	how, size := fmt.Sprintf("Content-Length: %d\r\n\r\n", announced), ""
	if chunked {
		how, size = "Transfer-Encoding: chunked\r\n\r\n", fmt.Sprintf("%x\r\n", announced)
	}
	return r.sendRaw("POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n" + how + size + strings.Repeat(" ", sent))
}

func longBody(n int, stream bool) string {
	return fmt.Sprintf(`{"model":"m","prompt":"%s","max_tokens":4,"stream":%v}`, strings.Repeat(strings.Repeat("x", 1<<10)+" ", n>>10), stream)
}

// The memory of all bodies together is bounded; beyond the bound, a request gets a 503 with Retry-After.
// Small bodies are served anyway, and so is a single body of any size.
func TestBodiesMemory_Bounded(t *testing.T) {
	t.Parallel()
	for _, chunked := range []bool{false, true} {
		t.Run(fmt.Sprintf("chunked=%v", chunked), func(t *testing.T) {
			t.Parallel()
			const limit, each = 1 << 20, 1 << 18
			r := start(t, fakevllm.Plain, 1, 1, func(o *forward.Options) { o.MaxBodies, o.BodyTimeout = limit, time.Hour })
			var patient []net.Conn
			refused := false
			for len(patient) < 40 && !refused {
				c, in := r.beginBody(each, each-1, chunked)
				patient = append(patient, c)
				answered := make(chan *http.Response, 1)
				go func() {
					if resp, err := http.ReadResponse(in, nil); err == nil {
						answered <- resp
					}
					close(answered)
				}()
				eventually(t, "the body is taken or refused", func() bool {
					held, _, no := r.handler.BodyMemory()
					refused = no > 0
					return refused || held >= int64(len(patient))*each
				})
				if held, _, _ := r.handler.BodyMemory(); held > limit {
					t.Fatalf("%d bytes are held", held)
				}
				if refused {
					resp := <-answered
					if resp == nil || resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" {
						t.Fatalf("%+v", resp)
					}
					b, err := io.ReadAll(resp.Body)
					if err != nil || !strings.Contains(string(b), `"ServiceUnavailableError"`) || !strings.Contains(string(b), "--max-bodies-memory") {
						t.Errorf("%s, %v", b, err)
					}
				}
			}
			require.True(t, refused && len(patient) >= 3, "%d bodies of 256 KiB, refused: %v", len(patient), refused)
			e := r.entry()
			assert.True(t, e.Status == http.StatusServiceUnavailable && e.Outcome == relay.OutcomeUnavailable, "%+v", e)
			small := chatBody(false, "")
			r.checkComplete(r.post("/v1/chat/completions", small), true, small)
			big := longBody(2*limit, false)
			if a := r.post("/v1/completions", big); a.err == nil && a.status != http.StatusServiceUnavailable {
				t.Errorf("a body that exceeds the bound: %d %.200s", a.status, a.body)
			}
			for _, c := range patient {
				_ = c.Close()
			}
			r.waitForHeld("the memory of those that left is given back", func(held int64) bool { return held == 0 })
			post := r.post
			if chunked {
				post = func(path, body string, _ ...string) answer { return r.postUnannounced(path, body) }
			}
			r.checkComplete(post("/v1/completions", big), false, big)
			r.waitForHeld("the memory is given back", func(held int64) bool { return held == 0 })
		})
	}
}

// An announced body for which there is no memory is refused before any of it has arrived.
func TestAnnouncedBody_NoMemory(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.Plain, 1, 1, func(o *forward.Options) { o.MaxBodies, o.BodyTimeout = 1<<20, time.Hour })
	r.beginBody(512<<10, 100<<10, false)
	r.waitForHeld("the first is there", func(held int64) bool { return held >= 100<<10 })
	_, in := r.beginBody(8<<20, 0, false)
	resp, err := http.ReadResponse(in, nil)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	assert.Equal(t, http.StatusServiceUnavailable, resp.StatusCode, resp.Status)
}

// A client that announces a large body but sends little of it holds little memory.
func TestBodyMemory_SlowClients(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.Plain, 1, 1, func(o *forward.Options) { o.BodyTimeout = time.Hour })
	const clients, sent = 100, 32 << 10
	for range clients {
		r.beginBody(32<<20, sent, false)
	}
	r.waitForHeld("all have come", func(held int64) bool { return held >= clients*sent })
	if held, _, _ := r.handler.BodyMemory(); held > 4*clients*sent {
		t.Errorf("%d bytes are held for %d that came", held, clients*sent)
	}
}

// The memory of a prompt is released when its answer is committed, not when the answer ends: these answers
// never end.
func TestBodyMemory_ReleasedAtCommit(t *testing.T) {
	t.Parallel()
	const event = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n" +
		"30\r\ndata: {\"choices\":[{\"index\":0,\"text\":\"a\"}]}    \n\n\r\n"
	// More than the proxy holds back of an unstreamed answer that needs no edit.
	part := "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 3000000\r\n\r\n" +
		`{"choices":[{"index":0,"text":"` + strings.Repeat("a", 1<<20+1<<10)
	for _, tc := range []struct {
		path, answer string
		stream       bool
	}{
		{"/v1/completions", event, true},
		{"/v1/embeddings", part, false},
		{"/v1/embeddings", event, true},
	} {
		t.Run(fmt.Sprintf("%s/stream=%v", tc.path, tc.stream), func(t *testing.T) {
			t.Parallel()
			r := start(t, fakevllm.Plain, 1, 1, func(o *forward.Options) { o.Idle = time.Hour })
			odd, _ := wireEngine(t, "decode", tc.answer)
			r.withEngine(odd, false)
			body := longBody(1<<20, tc.stream)
			resp, err := http.DefaultClient.Do(newRequest(t.Context(), t, http.MethodPost, r.URL+tc.path, strings.NewReader(body)))
			require.NoError(t, err)
			defer func() { _ = resp.Body.Close() }()
			if _, err := io.ReadFull(resp.Body, make([]byte, 8)); err != nil {
				t.Fatal(err)
			}
			r.waitForHeld("the prompt's memory is given back", func(held int64) bool { return held == 0 })
		})
	}
}
