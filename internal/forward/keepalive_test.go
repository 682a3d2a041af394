package forward_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/forward/flow"
	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/internal/forward/relay"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

// often is a keep-alive interval that does not slow a test down.
const often = 5 * time.Millisecond

// gate is an engine behind a reverse proxy that holds requests until it is opened.
type gate struct {
	address string
	open    chan struct{}
}

// gated returns a gate for an engine.
func gated(t *testing.T, s *fakevllm.Server) *gate {
	t.Helper()
	target, err := url.Parse("http://" + s.Address())
	require.NoError(t, err)
	g := &gate{open: make(chan struct{})}
	to := httputil.NewSingleHostReverseProxy(target)
	to.FlushInterval = -1
	to.ErrorLog = nil
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			body, err := io.ReadAll(r.Body) // otherwise net/http would not notice that the client leaves
			if err != nil {
				return
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
			select {
			case <-g.open:
			case <-r.Context().Done():
				return
			}
		}
		to.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	g.address = server.Listener.Addr().String()
	return g
}

// openStream sends a request and returns the answer once its header has come.
func (r *rig) openStream(q scenario, header ...string) (*http.Response, *bufio.Reader) {
	r.t.Helper()
	resp, err := http.DefaultClient.Do(newRequest(r.t.Context(), r.t, http.MethodPost, r.URL+q.path, strings.NewReader(q.body("")), header...))
	require.NoError(r.t, err)
	r.t.Cleanup(func() { _ = resp.Body.Close() })
	return resp, bufio.NewReader(resp.Body)
}

// readRest reads a stream to its end.
func readRest(resp *http.Response, in io.Reader) answer {
	body, err := io.ReadAll(in)
	return answer{resp.StatusCode, resp.Header, body, err}
}

// readUntil reads events until one has the text, and returns them all.
func readUntil(t *testing.T, in *bufio.Reader, text string) string {
	t.Helper()
	var all strings.Builder
	for !strings.Contains(all.String(), text) || !strings.HasSuffix(all.String(), "\n\n") {
		line, err := in.ReadString('\n')
		if all.WriteString(line); err != nil {
			t.Fatalf("%v behind %q", err, all.String())
		}
	}
	return all.String()
}

// keptFleet is a rig with keep-alives whose prefill is behind a gate.
func keptFleet(t *testing.T, tune func(*forward.Options)) (*rig, *gate) {
	t.Helper()
	r := start(t, fakevllm.Plain, 1, 2, func(o *forward.Options) {
		if o.KeepAlive = often; tune != nil {
			tune(o)
		}
	})
	g := gated(t, r.P[0])
	r.members.set(instanceAt(instance.Prefill, g.address, fakevllm.Plain), instanceOf(instance.Decode, r.D[0], fakevllm.Plain), instanceOf(instance.Decode, r.D[1], fakevllm.Plain))
	return r, g
}

// During prefill, the client gets status, header and comments. A later failure is still retried. A comment
// has the values that the header has otherwise, and the engine's answer follows it.
func TestKeepAlive_DuringPrefill(t *testing.T) {
	t.Parallel()
	eachAPI(t, streamed(), func(t *testing.T, q scenario) {
		r, g := keptFleet(t, nil)
		script(t, r.D[0], fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: 500, Times: 1})
		resp, in := r.openStream(q, "X-PD-Trace", "1")
		if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/event-stream; charset=utf-8" || resp.Header.Get("X-Request-Id") == "" || resp.Header.Get("X-Accel-Buffering") != "no" {
			t.Fatalf("%d %v", resp.StatusCode, resp.Header)
		}
		got := readUntil(t, in, ": keep-alive\n\n: keep-alive\n\n: keep-alive\n\n")
		assert.Equal(t, "", strings.Trim(got, ": kep-aliv\n"), "before anything is generated: %q", got)
		close(g.open)
		a := readRest(resp, in)
		testkit.Contains(t, string(a.body), ": X-Pd-Attempts: 2\n", ": X-Pd-Prefill: "+g.address+"\n")
		a.body = withoutKeepAlives(openai.KindOf(q.path), a.body)
		r.checkWhole(q, a)
		e := r.entry()
		if e.Outcome != relay.OutcomeOK || e.Failed != 1 || e.KeepAlives < 3 || e.Late != 0 || e.Status != http.StatusOK || r.rec.retried() != "decode/status_5xx" {
			t.Errorf("retried %q, entry %+v", r.rec.retried(), e)
		}
		r.checkEngines()
	})
}

// An error after an early header is an event in the format of its API, without a clean end. The log has the
// status and the reasons.
func TestKeepAlive_ThenError(t *testing.T) {
	t.Parallel()
	eachAPI(t, streamed(), func(t *testing.T, q scenario) {
		r, g := keptFleet(t, func(o *forward.Options) { o.MaxAttempts = 2 })
		for _, s := range r.D {
			script(t, s, fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: 500})
		}
		script(t, r.P[0], fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: 500})
		resp, in := r.openStream(q)
		readUntil(t, in, ": keep-alive\n\n")
		close(g.open)
		a := readRest(resp, in)
		r.checkBroken(q, a)
		assert.Contains(t, string(a.body), ": X-Pd-Decode-Only: prefill_failed\n")
		if e := r.entry(); e.Status != http.StatusOK || e.Late != http.StatusInternalServerError || e.Outcome != relay.OutcomeUpstream || e.DecodeOnly != "prefill_failed" || e.Failure == "" {
			t.Errorf("entry %+v", e)
		}
	})
}

// The proxy notices a client that leaves during keep-alives, and nothing remains of its request.
func TestKeepAlive_ClientLeaves(t *testing.T) {
	t.Parallel()
	r, _ := keptFleet(t, nil)
	ctx, leave := context.WithCancel(t.Context())
	resp, err := http.DefaultClient.Do(newRequest(ctx, t, http.MethodPost, r.URL+chatPath, strings.NewReader(chatBody(true, ""))))
	require.NoError(t, err)
	readUntil(t, bufio.NewReader(resp.Body), ": keep-alive\n\n")
	leave()
	_ = resp.Body.Close()
	e := r.entry()
	assert.True(t, e.Outcome == relay.OutcomeClientGone && e.Failure == "", "entry %+v", e)
	r.checkEngines()
}

// The status of an answer is the engine's if it is not streamed, or if the setting is off.
func TestKeepAlive_NotStreamed(t *testing.T) {
	t.Parallel()
	r, g := keptFleet(t, nil)
	script(t, r.P[0], fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: 400})
	time.AfterFunc(10*often, func() { close(g.open) }) // longer than the interval, whatever else happens
	r.checkRefused(scenario{chatPath, false}, r.post(chatPath, chatBody(false, "")), http.StatusBadRequest, "")
	e := r.entry()
	assert.True(t, e.KeepAlives == 0 && e.Late == 0, "entry %+v", e)
}

// startStepped starts a decode engine that sends one part of its answer after another.
func startStepped(t *testing.T) (engine *instance.Instance, parts chan string) {
	t.Helper()
	parts = make(chan string)
	return handlerEngine(t, instance.Decode, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		_ = http.NewResponseController(w).Flush()
		for {
			select {
			case part, more := <-parts:
				if !more {
					return
				}
				_, _ = io.WriteString(w, part)
				_ = http.NewResponseController(w).Flush()
			case <-r.Context().Done():
				return
			}
		}
	}), parts
}

// Before the first content, an engine's comments and pings pass as comments; the stream that follows is
// unchanged. While the engine pauses, the client gets comments, or pings on /v1/messages.
func TestKeepAlive_FromEngine(t *testing.T) {
	t.Parallel()
	for _, path := range []string{chatPath, messagesPath} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			r := start(t, fakevllm.Plain, 1, 1, func(o *forward.Options) { o.KeepAlive = time.Hour })
			e, parts := startStepped(t)
			r.members.set(instanceOf(instance.Prefill, r.P[0], fakevllm.Plain), e)
			own, passed := ": of the engine\n\n", ": of the engine\n\n"
			begin, content := "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n", "data: {\"choices\":[{\"delta\":{\"content\":\"a\"},\"finish_reason\":\"stop\"}]}\n\n"
			end := "data: [DONE]\n\n"
			if path == messagesPath {
				own, passed = "event: ping\ndata: {\"type\":\"ping\"}\n\n", ": keep-alive\n\n"
				begin, content = "event: message_start\ndata: {\"type\":\"message_start\"}\n\n", "event: content_block_delta\ndata: {\"type\":\"content_block_delta\"}\n\n"
				end = "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"
			}
			go func() { parts <- begin + own }()
			_, in := r.openStream(scenario{path, true})
			got := readUntil(t, in, passed)
			parts <- own
			got += readUntil(t, in, passed)
			parts <- content + own + end
			close(parts)
			rest, err := io.ReadAll(in)
			if got += string(rest); err != nil || got != passed+passed+begin+content+own+end {
				t.Errorf("%v: %q", err, got)
			}
			if entry := r.entry(); entry.Outcome != relay.OutcomeOK || entry.KeepAlives != 0 {
				t.Errorf("entry %+v", entry)
			}
		})
	}
}

// A stream that pauses after its first content is kept alive.
func TestKeepAlive_InPause(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.Plain, 1, 1, func(o *forward.Options) { o.KeepAlive = often })
	e, parts := startStepped(t)
	r.members.set(instanceOf(instance.Prefill, r.P[0], fakevllm.Plain), e)
	const start, delta = "event: message_start\ndata: {\"type\":\"message_start\"}\n\n", "event: content_block_delta\ndata: {\"type\":\"content_block_delta\"}\n\n"
	const ping, end = "event: ping\ndata: {\"type\":\"ping\"}\n\n", "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"
	go func() { parts <- start + delta }()
	_, in := r.openStream(scenario{messagesPath, true})
	if got := readUntil(t, in, ping+ping); strings.Index(got, "event: message_start") > strings.Index(got, ping) {
		t.Errorf("a ping precedes message_start: %q", got)
	}
	parts <- delta + end
	close(parts)
	rest, err := io.ReadAll(in)
	kept := string(withoutKeepAlives(openai.Messages, rest))
	assert.True(t, err == nil && kept == delta+end && strings.HasSuffix(string(rest), end), "%v: %q", err, rest)
}

// Bytes that only keep a stream open are no progress and do not extend the limits; each part of a long event
// does.
func TestKeepAlive_FromHungEngine(t *testing.T) {
	t.Parallel()
	const idle = 2 * time.Second // the content must come within it
	for path, kept := range map[string]struct{ content, own string }{
		chatPath:     {"data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n", ": keep-alive\n\n"},
		messagesPath: {"event: content_block_delta\ndata: {\"type\":\"content_block_delta\"}\n\n", "event: ping\ndata: {\"type\":\"ping\"}\n\n"},
	} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			begin := func(idle time.Duration) (*rig, chan string, *bufio.Reader) {
				r := start(t, fakevllm.Plain, 0, 1, func(o *forward.Options) { o.Idle = idle })
				e, parts := startStepped(t)
				r.members.set(e)
				go func() { parts <- kept.content }()
				_, in := r.openStream(scenario{path, true})
				readUntil(t, in, kept.content)
				return r, parts, in
			}
			r, parts, in := begin(time.Hour)
			engine := r.members.Snapshot().All()[0].Key
			progress := func() uint64 { return r.sched.Loads.Progress(engine) }
			eventually(t, "content is progress", func() bool { return progress() == 1 })
			parts <- kept.own
			readUntil(t, in, kept.own)
			assert.EqualValues(t, 1, progress(), "times progress")
			parts <- kept.content[:9]
			eventually(t, "a part of an event is progress", func() bool { return progress() > 1 })
			parts <- kept.content[9:]
			eventually(t, "its end is progress", func() bool { return progress() > 2 })

			r, parts, _ = begin(idle)
			each := time.NewTicker(idle / 3)
			defer each.Stop()
			for range 100 {
				select {
				case entry := <-r.rec.ended:
					assert.True(t, entry.Failure == leg.IdleTimeout && entry.Outcome == relay.OutcomeBroken, "entry %+v", entry)
					return
				case <-each.C:
				}
				select {
				case parts <- kept.own:
				case <-time.After(idle): // the engine has noticed that the leg ended
				}
			}
			t.Error("the stream has no limit")
		})
	}
}

// Keep-alives that fire constantly in many streams split no event and lose none.
func TestKeepAlive_EventBoundaries(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.Plain, 1, 1, func(o *forward.Options) { o.KeepAlive = time.Microsecond })
	want := r.post(chatPath, chatBody(false, `,"n":1`)).text(t)
	done := make(chan error)
	const clients = 8
	for range clients {
		go func() {
			for range 4 {
				a := r.post(chatPath, chatBody(true, ""))
				if got := a.text(t); a.err != nil || got != want {
					done <- fmt.Errorf("%w: %q, want %q", a.err, got, want)
					return
				}
			}
			done <- nil
		}()
	}
	for range clients {
		assert.NoError(t, <-done)
	}
	r.checkEngines()
}

// heldPicker picks nothing until it is released, like a proxy that has just started.
type heldPicker struct {
	flow.Picker

	released chan struct{}
}

func (p heldPicker) Pick(r sched.Request) (*sched.Assignment, error) {
	<-p.released
	return p.Picker.Pick(r)
}

// While no instance can be picked, the client gets comments. An error of the proxy itself is then an event,
// and its Retry-After a comment.
func TestKeepAlive_DuringPick(t *testing.T) {
	t.Parallel()
	for _, served := range []bool{true, false} {
		released := make(chan struct{})
		r := start(t, fakevllm.Plain, 1, 1, func(o *forward.Options) { o.KeepAlive, o.Picker = often, heldPicker{o.Picker, released} })
		if !served {
			r.members.set()
		}
		q := scenario{chatPath, true}
		resp, in := r.openStream(q)
		readUntil(t, in, ": keep-alive\n\n")
		close(released)
		a := readRest(resp, in)
		e := r.entry()
		if served {
			a.body = withoutKeepAlives(openai.Chat, a.body)
			r.checkWhole(q, a)
			continue
		}
		r.checkBroken(q, a)
		if !strings.Contains(string(a.body), ": Retry-After: 1\n") || e.Late != http.StatusServiceUnavailable || e.Outcome != relay.OutcomeUnavailable {
			t.Errorf("entry %+v: %s", e, a.body)
		}
	}
}

// Once the header of a stream is sent, an engine that answers with anything but a stream has failed.
func TestKeepAlive_NoStream(t *testing.T) {
	t.Parallel()
	r, g := keptFleet(t, nil)
	r.members.set(instanceAt(instance.Prefill, g.address, fakevllm.Plain), handlerEngine(t, instance.Decode, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}]}`)
	}))
	q := scenario{chatPath, true}
	resp, in := r.openStream(q)
	readUntil(t, in, ": keep-alive\n\n")
	close(g.open)
	r.checkBroken(q, readRest(resp, in))
	e := r.entry()
	assert.True(t, e.Failure == leg.BadAnswer && e.Late == http.StatusBadGateway, "entry %+v", e)
}
