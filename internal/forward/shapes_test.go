package forward_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/forward/relay"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

// Both edits preserve every form of limits and prompts that clients send.
func TestRequestShapes(t *testing.T) {
	t.Parallel()
	const prompt, hi, input = `"prompt":[17,18,19,20]`, `"messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}]`, `"input":"hi"`
	for _, tc := range []struct {
		name, path, fields string
	}{
		{"min_tokens 5", chatPath, hi + `,"max_tokens":9,"min_tokens":5`},
		{"min_tokens 5 and max_completion_tokens", chatPath, hi + `,"max_completion_tokens":9,"min_tokens":5`},
		{"max_completion_tokens only", chatPath, hi + `,"max_completion_tokens":9`},
		{"both limits", chatPath, hi + `,"max_tokens":3,"max_completion_tokens":9`},
		{"no limit", "/v1/completions", prompt + `,"x":1`},
		{"stop", chatPath, hi + `,"max_tokens":9,"stop":[" xyz"]`},
		{"ignore_eos", "/v1/completions", prompt + `,"max_tokens":9,"ignore_eos":true`},
		{"max_output_tokens", responsesPath, input + `,"max_output_tokens":9`},
		{"no limit of a response", responsesPath, input},
		{"stop and ignore_eos of a response", responsesPath, input + `,"max_output_tokens":9,"stop":[" xyz"],"ignore_eos":true`},
		{"not stored", responsesPath, input + `,"max_output_tokens":9,"store":false,"background":false`},
		{"a message", messagesPath, hi + `,"max_tokens":9`},
		{"stop_sequences", messagesPath, hi + `,"max_tokens":9,"stop_sequences":[" xyz"]`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			for _, mode := range []fakevllm.Mode{fakevllm.Plain, fakevllm.NIXL} {
				for _, stream := range both() {
					r := start(t, mode, 1, 1, nil)
					body := fmt.Sprintf(`{"model":"m",%s,"stream":%v}`, tc.fields, stream)
					if a := r.post(tc.path, body); strings.HasSuffix(tc.path, "completions") {
						r.checkComplete(a, tc.path == chatPath, body)
					} else {
						r.checkAgentAnswer(a, tc.path, body)
					}
					assert.EqualValues(t, 0, r.D[0].Counters().LocalPrefills, "the prompt was computed again")
					r.checkEngines()
				}
			}
		})
	}
}

// Two requests with one client id have different ids in the engines.
func TestDuplicateRequestID(t *testing.T) {
	t.Parallel()
	eachSequential(t, func(t *testing.T, mode fakevllm.Mode, q scenario) {
		r := start(t, mode, 1, 1, nil)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() { r.checkServed(q, "X-Request-Id", "same") })
		}
		wg.Wait()
		seen := map[string]bool{}
		for _, q := range posted(r.P[0]) {
			id := q.Header.Get("X-Request-Id")
			assert.False(t, seen[id], "two prefills under %q", id)
			seen[id] = true
		}
		r.checkEngines()
	})
}

func TestIPv6Instance(t *testing.T) {
	t.Parallel()
	if ln, err := net.Listen("tcp", "[::1]:0"); err != nil {
		t.Skip("this machine has no IPv6 loopback address")
	} else {
		_ = ln.Close()
	}
	r := start(t, fakevllm.NIXL, 0, 0, nil)
	shared := fakevllm.NewShared()
	var list []*instance.Instance
	for _, role := range instance.Roles() {
		s := fakevllm.StartTest(t, fakevllm.Options{Addr: "[::1]:0", Role: fakevllm.Role(role), Mode: fakevllm.NIXL, Models: []string{model}, Shared: shared})
		list = append(list, instanceAt(role, s.Address(), fakevllm.NIXL))
	}
	r.members.set(list...)
	body := chatBody(true, "")
	r.checkComplete(r.post("/v1/chat/completions", body), true, body)
}

// hookPicker calls a hook before each pick of a decode instance.
type hookPicker struct {
	*sched.Scheduler
	before func()
}

func (h hookPicker) Pick(r sched.Request) (*sched.Assignment, error) {
	if r.Role == instance.Decode {
		h.before()
	}
	return h.Scheduler.Pick(r)
}

// If the client leaves between the legs, the decode leg is not sent, and the KV transfer ends with its lease.
func TestClientLeaves_BetweenLegs(t *testing.T) {
	t.Parallel()
	eachSequential(t, func(t *testing.T, mode fakevllm.Mode, q scenario) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var r *rig
		r = start(t, mode, 1, 1, func(o *forward.Options) {
			s, _ := o.Picker.(*sched.Scheduler)
			o.Picker = hookPicker{s, func() {
				cancel()
				eventually(t, "the server notices", func() bool { return r.ended.Load() > 0 })
			}}
		})
		a := r.postCtx(ctx, q.path, q.body(""))
		require.Error(t, a.err, "the client did not leave")
		if e := r.entry(); e.Outcome != relay.OutcomeClientGone || e.Failed != 0 && r.rec.retried() != "" {
			t.Fatalf("entry %+v", e)
		}
		require.EqualValues(t, 0, total(r.D, func(c fakevllm.Counters) int64 { return c.Completed }),
			"answers for a client that left")
		r.checkEngines()
	})
}

// rawEngine returns a decode engine that answers with these chunks of bytes.
func rawEngine(t *testing.T, chunks []string) *instance.Instance {
	t.Helper()
	address := testkit.RawServer(t, testkit.RawAnswers(func(c net.Conn, _ *http.Request, _ int) bool {
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n")
		for _, b := range chunks {
			if _, err := fmt.Fprintf(c, "%x\r\n%s\r\n", len(b), b); err != nil {
				return false
			}
		}
		_, _ = io.WriteString(c, "0\r\n\r\n")
		return false
	}))
	return instanceAt(instance.Decode, address, fakevllm.Plain)
}

// Events that arrive in pieces or together are sent whole and in order, and no write to the
// client ends inside an event.
func TestEvents_SplitAndJoined(t *testing.T) {
	t.Parallel()
	event := func(s string) string { return `data: {"choices":[{"index":0,"text":"` + s + `"}]}` + "\n\n" }
	named := func(name, more string) string {
		return "event: " + name + "\ndata: {\"type\":\"" + name + "\"" + more + "}\n\n"
	}
	long := strings.Repeat("long", 20000)
	for path, stream := range map[string]string{
		"/v1/completions": ": ping\n\n" + event("") + event("a") + event("ü😀") + strings.ReplaceAll(event("crlf"), "\n\n", "\r\n\r\n") +
			event(long) + "data: [DONE]\n\n",
		responsesPath: named("response.created", `,"response":{"usage":null}`) + named("response.output_text.delta", `,"delta":"ü😀"`) +
			strings.ReplaceAll(named("response.output_text.delta", `,"delta":"crlf"`), "\n", "\r\n") +
			named("response.output_text.delta", `,"delta":"`+long+`"`) + named("response.completed", `,"response":{"usage":{}}`),
		messagesPath: named("message_start", `,"message":{}`) + named("ping", "") + named("content_block_delta", `,"delta":{"text":"ü😀"}`) +
			strings.ReplaceAll(named("content_block_delta", `,"delta":{"text":"crlf"}`), "\n", "\r\n") +
			named("content_block_delta", `,"delta":{"text":"`+long+`"}`) + named("message_stop", ""),
	} {
		for _, n := range []int{7, 64, 1000, len(stream)} {
			t.Run(fmt.Sprint(path, " ", n), func(t *testing.T) {
				t.Parallel()
				var chunks []string
				for rest := stream; rest != ""; {
					k := min(n, len(rest))
					chunks, rest = append(chunks, rest[:k]), rest[k:]
				}
				r := start(t, fakevllm.Plain, 1, 0, nil)
				r.members.set(instanceAt(instance.Prefill, r.P[0].Address(), fakevllm.Plain), rawEngine(t, chunks))
				body := `{"model":"m","prompt":"x","stream":true}`
				if path != "/v1/completions" {
					body = agentBody(path, true, "")
				}
				a := r.post(path, body)
				require.True(t, a.err == nil && string(a.body) == stream,
					"err %v, %d bytes of %d", a.err, len(a.body), len(stream))
			})
		}
	}
}
