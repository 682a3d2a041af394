package forward_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/forward/continuation"
	"github.com/pdmesh/pdmesh/internal/forward/flow"
	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/internal/forward/relay"
	"github.com/pdmesh/pdmesh/internal/health"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/testkit/longform"
	"github.com/pdmesh/pdmesh/sim/testkit/sseanswer"
)

func continuing(o *forward.Options) { o.ContinueStreams = 3 }

// sixtyBody returns a streamed request for 60 tokens.
func sixtyBody(path, more string) string {
	if path == completionsPath {
		return `{"model":"m","prompt":"describe the sea","max_tokens":60,"stream":true,"stream_options":{"include_usage":true}` + more + `}`
	}
	switch path {
	case responsesPath:
		return `{"model":"m","input":"describe the sea","max_output_tokens":60,"stream":true` + more + `}`
	case messagesPath:
		return `{"model":"m","messages":[{"role":"user","content":"describe the sea"}],"max_tokens":60,"stream":true` + more + `}`
	}
	return `{"model":"m","messages":[{"role":"user","content":"describe the sea"}],"max_tokens":60,"stream":true,"stream_options":{"include_usage":true}` + more + `}`
}

// checkOne checks that a stream is one complete answer, equal to that of an undisturbed engine.
func (r *rig) checkOne(a answer, path, body string, o fakevllm.Options) {
	r.t.Helper()
	want, err := o.Expected(path, []byte(body))
	require.NoError(r.t, err)
	if a.err != nil || a.status != http.StatusOK {
		r.t.Fatalf("status %d, err %v, continued %q, not continued %q, retried %q: %.2000s", a.status, a.err, r.rec.moved, r.rec.stayed, r.rec.retries, a.body)
	}
	got, err := sseanswer.Read(string(a.body))
	require.NoError(r.t, err)
	assert.NoError(r.t, got.Differs(&want[0], strings.Contains(body, `"return_token_ids":true`)), "%s", a.body)
}

// checkMoved checks which streams were continued, and how.
func (r *rig) checkMoved(want ...string) {
	r.t.Helper()
	r.rec.mu.Lock()
	defer r.rec.mu.Unlock()
	assert.True(r.t, slices.Equal(r.rec.moved, want) && len(r.rec.stayed) <= 0,
		"continued %q, not continued %q, want %q", r.rec.moved, r.rec.stayed, want)
}

// checkContinues sends a request, checks its answer, and checks that its stream continues as wanted.
func (r *rig) checkContinues(path, more string, want ...string) {
	r.t.Helper()
	body := sixtyBody(path, more)
	r.checkOne(r.post(path, body), path, body, engineOptions(func(*fakevllm.Options) {}))
	r.checkMoved(want...)
}

// engineOptions returns the options of a rig's engines, as far as they change answers.
func engineOptions(more func(*fakevllm.Options)) fakevllm.Options {
	o := fakevllm.Options{Models: []string{model}}
	more(&o)
	return o
}

// However a decode leg is lost in the middle of a stream, the client gets one complete answer.
func TestStreamContinues(t *testing.T) {
	t.Parallel()
	for _, mode := range []fakevllm.Mode{fakevllm.Plain, fakevllm.NIXL, fakevllm.Mooncake, fakevllm.P2P, fakevllm.LMCache, fakevllm.MoRIIOWrite} {
		for path, more := range map[string]string{completionsPath: "", chatPath: "", messagesPath: `,"temperature":0`} {
			for _, fault := range []fakevllm.Fault{
				{Kind: fakevllm.FaultReset, Tokens: 7}, {Kind: fakevllm.FaultClose, Tokens: 20}, {Kind: fakevllm.FaultErrorEvent, Tokens: 33},
				{Kind: fakevllm.FaultAbort, Tokens: 11}, {Kind: fakevllm.FaultDie, Tokens: 1},
			} {
				t.Run(fmt.Sprintf("%s%s/%s", mode, path, fault.Kind), func(t *testing.T) {
					t.Parallel()
					split := func(o *fakevllm.Options) { o.SplitCharacters, o.Version = true, "0.32.0" }
					r := startTuned(t, mode, 2, 2, tuning{forward: continuing, engine: split, sched: noProbes})
					fault.Times = 1
					script(t, r.D[0], fault)
					body := sixtyBody(path, more)
					a := r.post(path, body)
					r.checkOne(a, path, body, engineOptions(split))
					assert.Contains(t, string(a.body), "\n\n: continued\n")
					e := r.entry()
					assert.True(t, e.Outcome == relay.OutcomeOK && e.Continued == 1, "entry %+v", e)
					r.checkEngines()
				})
			}
		}
	}
}

// A stream may be continued several times, up to the limit.
func TestStreamContinuesAgain(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.NIXL, 1, 3, continuing)
	for _, d := range r.D {
		script(t, d, fakevllm.Fault{Kind: fakevllm.FaultErrorEvent, Tokens: 5, Times: 4})
	}
	a := r.post(completionsPath, sixtyBody(completionsPath, ""))
	e := r.entry()
	if e.Outcome != relay.OutcomeBroken || e.Continued != 3 || a.err == nil || e.Failed != 4 || len(r.rec.failed) != 4 {
		t.Errorf("entry %+v, failed %q, err %v", e, r.rec.failed, a.err)
	}
	assert.True(t, strings.Contains(string(a.body), `"error"`) && !strings.Contains(string(a.body), "[DONE]"),
		"the client gets %s", a.body)
	assert.Equal(t, []string{continuation.ReasonLimit}, r.rec.stayed, "not continued")
}

// The token id of <think> does not commit a chat: a continuation would generate it a second time.
func TestStreamRetried_AfterThink(t *testing.T) {
	t.Parallel()
	reasons := func(o *fakevllm.Options) { o.Version, o.ReasoningParser = "0.32.0", "qwen3" }
	r := startTuned(t, fakevllm.NIXL, 1, 2, tuning{forward: continuing, engine: reasons, sched: noProbes})
	script(t, r.D[0], fakevllm.Fault{Kind: fakevllm.FaultClose, Tokens: 1, Times: 1})
	body := sixtyBody(chatPath, `,"return_token_ids":true`)
	r.checkOne(r.post(chatPath, body), chatPath, body, engineOptions(reasons))
	e := r.entry()
	assert.True(t, e.Continued == 0 && r.rec.retried() != "", "entry %+v, retried %q", e, r.rec.retried())
}

// With a single decode instance, a stream continues there: the instance may have lost only this request.
func TestStreamContinuesOnTheSameInstance(t *testing.T) {
	t.Parallel()
	for class, fault := range map[leg.Class]fakevllm.Fault{
		leg.BrokeOff: {Kind: fakevllm.FaultReset}, leg.ErrorEvent: {Kind: fakevllm.FaultErrorEvent},
		leg.Aborted: {Kind: fakevllm.FaultAbort}, leg.GaveUp: {Kind: fakevllm.FaultRecomputed},
	} {
		t.Run(string(class), func(t *testing.T) {
			t.Parallel()
			r := start(t, fakevllm.Ascend, 1, 1, continuing)
			fault.Tokens, fault.Times = 9, 2
			script(t, r.D[0], fault)
			r.checkContinues(completionsPath, "", string(class)+" prompt", string(class)+" prompt")
		})
	}
}

// A stream counts as continued once the client gets more text, not while a leg repeats earlier text.
func TestStreamContinues_CountedAfterReplay(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.NIXL, 1, 2, continuing)
	script(t, r.D[0], fakevllm.Fault{Kind: fakevllm.FaultErrorEvent, Tokens: 30, Times: 1})
	script(t, r.D[1], fakevllm.Fault{Kind: fakevllm.FaultAbort, Tokens: 9, Times: 1})
	r.checkContinues(messagesPath, `,"temperature":0`, "aborted replay")
}

// takeHook is a Picker that calls a function before Take counts.
type takeHook struct {
	flow.Picker
	before func()
}

func (p takeHook) Take(in *instance.Instance) (*sched.Assignment, error) {
	p.before()
	return p.Picker.Take(in)
}

// A stream whose connection broke does not continue on the same instance if that is drained before the new
// leg is counted: a drain proof may have found the instance idle.
func TestStreamLeaves_InstanceDrained(t *testing.T) {
	t.Parallel()
	var r *rig
	r = start(t, fakevllm.NIXL, 1, 2, func(o *forward.Options) {
		continuing(o)
		o.Picker = takeHook{o.Picker, func() {
			r.members.change(func(in *instance.Instance) {
				switch in.Address {
				case r.D[0].Address():
					in.Intent = instance.Drain
				case r.D[1].Address():
					in.Intent = ""
				}
			})
		}}
	})
	r.members.changeAt(r.D[1], func(in *instance.Instance) { in.Intent = instance.Cordon })
	script(t, r.D[0], fakevllm.Fault{Kind: fakevllm.FaultReset, Tokens: 9, Times: 1})
	r.checkContinues(completionsPath, "", "broke_off prompt")
	assert.EqualValues(t, 1, legs(r.D[:1]), "legs on the drained instance")
}

// A stream that an instance loses twice continues on another one.
func TestStreamLeaves_InstanceFailsTwice(t *testing.T) {
	t.Parallel()
	for _, mode := range []fakevllm.Mode{fakevllm.Plain, fakevllm.NIXL, fakevllm.P2P} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			r := start(t, mode, 1, 2, continuing)
			script(t, r.D[0], fakevllm.Fault{Kind: fakevllm.FaultReset, Tokens: 5, Times: 4})
			r.checkContinues(completionsPath, "", "broke_off prompt", "broke_off prompt")
		})
	}
}

// The same holds if no prefill instance can be paired with the others: they compute the prompt.
func TestStreamLeaves_OnlyPartnerFailsTwice(t *testing.T) {
	t.Parallel()
	for _, mode := range []fakevllm.Mode{fakevllm.NIXL, fakevllm.Mooncake, fakevllm.P2P, fakevllm.MoRIIOWrite} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			r := start(t, mode, 1, 2, continuing)
			lost, other := r.D[0], r.D[1].Address()
			r.members.changeAt(r.D[1], func(in *instance.Instance) { in.Record.Connector = "offloading" })
			script(t, lost, fakevllm.Fault{Kind: fakevllm.FaultReset, Tokens: 5, Times: 4})
			r.checkContinues(completionsPath, "", "broke_off prompt", "broke_off prompt")
			if e := r.entry(); e.BeganPrefill != r.P[0].Address() || e.BeganDecode != lost.Address() || e.Prefill != "" || e.Decode != other {
				t.Errorf("began on %q and %q, ended on %q and %q", e.BeganPrefill, e.BeganDecode, e.Prefill, e.Decode)
			}
		})
	}
}

// A stream continues even if engines fail to detokenize its tokens for a while, or the first queried engine
// does not answer.
func TestStreamContinuesAfterDetokenizeFails(t *testing.T) {
	t.Parallel()
	for decodes, fault := range map[int]fakevllm.Fault{
		2: {Kind: fakevllm.FaultStatus, Status: http.StatusServiceUnavailable, Path: "/detokenize", Times: 2},
		3: {Kind: fakevllm.FaultHang, Path: "/detokenize", Times: 1},
	} {
		r := start(t, fakevllm.NIXL, 1, decodes, continuing)
		for _, d := range r.D {
			script(t, d, fault)
		}
		script(t, r.D[0], fakevllm.Fault{Kind: fakevllm.FaultErrorEvent, Tokens: 9, Times: 1})
		r.checkContinues(completionsPath, "", "error_event prompt")
	}
}

// An instance that fails to detokenize is not queried again before the others.
func TestStreamContinues_OneFailsDetokenize(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.NIXL, 1, 3, continuing)
	script(t, r.D[1], fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: http.StatusServiceUnavailable, Path: "/detokenize"})
	script(t, r.D[0], fakevllm.Fault{Kind: fakevllm.FaultReset, Tokens: 9, Times: 1})
	r.checkContinues(completionsPath, "", "broke_off prompt")
}

// The instance that failed is not queried to detokenize while another one answers.
func TestStreamContinues_FailedNotQueried(t *testing.T) {
	t.Parallel()
	least, err := policy.Find("least_loaded")
	require.NoError(t, err)
	r := startTuned(t, fakevllm.NIXL, 1, 2, tuning{forward: continuing, sched: func(o *sched.Options) {
		o.Policies = map[instance.Role]policy.Kind{instance.Decode: least}
	}})
	for _, c := range r.sched.Usable(instance.Decode, model, nil) {
		if c.Instance.Address == r.D[1].Address() {
			c.Load.Begin(1000) // the other one is preferred
		}
	}
	script(t, r.D[0], fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: http.StatusServiceUnavailable, Path: "/detokenize"})
	script(t, r.D[0], fakevllm.Fault{Kind: fakevllm.FaultErrorEvent, Tokens: 9, Times: 1})
	r.checkContinues(completionsPath, "", "error_event prompt")
	assert.EqualValues(t, 1, r.D[0].Counters().Faults, "faults")
}

// If only the end of a stream is missing, the proxy sends it.
func TestStreamCompleted(t *testing.T) {
	t.Parallel()
	for _, path := range []string{completionsPath, chatPath} {
		r := startTuned(t, fakevllm.NIXL, 1, 2, tuning{forward: continuing, engine: func(o *fakevllm.Options) { o.CacheBlocks = 100 }})
		body := strings.Replace(sixtyBody(path, `,"ignore_eos":true`), "the sea", "the sea"+strings.Repeat(" and all that swims in it", 3), 1)
		r.checkOne(r.post(path, body), path, body, engineOptions(func(*fakevllm.Options) {})) // prefill caches the prompt
		before := legs(r.D)
		for _, d := range r.D {
			script(t, d, fakevllm.Fault{Kind: fakevllm.FaultClose, Tokens: 60})
		}
		a := r.post(path, body)
		r.checkOne(a, path, body, engineOptions(func(*fakevllm.Options) {}))
		r.checkMoved("broke_off completed")
		assert.EqualValues(t, 1, legs(r.D)-before, "%s: decode legs", path)
		assert.Contains(t, string(a.body), `"prompt_tokens_details":{"cached_tokens":16}`)
	}
}

// A stream that lacks only its end needs no leg: it is not a retry, and is completed even if the retry budget
// is spent.
func TestStreamCompleted_NoRetryBudget(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.NIXL, 1, 1, func(o *forward.Options) { o.ContinueStreams, o.RetryRatio, o.RetryBurst = 3, 1e-9, 1 })
	script(t, r.D[0], fakevllm.Fault{Kind: fakevllm.FaultClose, Tokens: 60})
	body := sixtyBody(completionsPath, `,"ignore_eos":true`)
	var want []string
	for range 4 {
		r.checkOne(r.post(completionsPath, body), completionsPath, body, engineOptions(func(*fakevllm.Options) {}))
		want = append(want, "broke_off completed")
	}
	r.checkMoved(want...)
	assert.Equal(t, "", r.rec.retried(), "retried")
}

// A stream without token ids keeps the memory of its body until no leg can replay it. The bodies have the
// same size, so that they share a pool.
func TestReplayedBodies_MemoryReuse(t *testing.T) {
	t.Parallel()
	reasons := func(o *fakevllm.Options) { o.Version, o.ReasoningParser = "0.32.0", "qwen3" }
	r := startTuned(t, fakevllm.NIXL, 2, 3, tuning{forward: func(o *forward.Options) { o.ContinueStreams, o.MaxAttempts, o.RetryRatio = 30, 50, -1 },
		engine: reasons, sched: noProbes, health: func(o *health.Options) { o.MaxFailures = 1 << 20 }})
	for i, d := range r.D {
		script(t, d, fakevllm.Fault{Kind: fakevllm.FaultErrorEvent, Tokens: 40, Probability: 0.4, Seed: uint64(i + 1), Path: chatPath})
	}
	const clients, rounds = 6, 8
	var bodies [clients][rounds]string
	var answers [clients][rounds]answer
	var wait sync.WaitGroup
	for c := range clients {
		wait.Go(func() {
			for i := range rounds {
				padding := strings.Repeat(string(rune('a'+c))+string(rune('a'+i))+" ", 2<<10)
				bodies[c][i] = strings.Replace(sixtyBody(chatPath, `,"include_reasoning":false,"temperature":0`), "the sea", padding, 1)
				answers[c][i] = r.post(chatPath, bodies[c][i])
			}
		})
	}
	wait.Wait()
	for c := range clients {
		for i := range rounds {
			r.checkOne(answers[c][i], chatPath, bodies[c][i], engineOptions(reasons))
		}
	}
	assert.True(t, slices.Contains(r.rec.moved, "error_event replay"), "continued %q", r.rec.moved)
}

const offeredTools = `,"tools":[{"type":"function","function":{"name":"look"}},{"type":"function","function":{"name":"go_on"}}]`

// Without token ids, the proxy repeats the request to get the usage. The client gets nothing else twice.
func TestStreamCompleted_ByReplay(t *testing.T) {
	t.Parallel()
	reasons := func(o *fakevllm.Options) { o.Version, o.ReasoningParser = "0.32.0", "qwen3" }
	r := startTuned(t, fakevllm.NIXL, 1, 2, tuning{forward: continuing, engine: reasons, sched: noProbes})
	script(t, r.D[0], fakevllm.Fault{Kind: fakevllm.FaultClose, Tokens: 60, Times: 1})
	body := sixtyBody(chatPath, `,"ignore_eos":true,"include_reasoning":false,"temperature":0`)
	r.checkOne(r.post(chatPath, body), chatPath, body, engineOptions(reasons))
	r.checkMoved("broke_off replay")
}

// Streams are cut after every second token; in the short form after every third, at other tokens for each
// kind. Each one continues exactly, or is of a kind that is refused.
func TestStreamContinuesAtEveryCut(t *testing.T) {
	t.Parallel()
	parsers := func(reasoning string) func(*fakevllm.Options) {
		return func(o *fakevllm.Options) {
			o.Version, o.SplitCharacters, o.ReasoningParser, o.ToolParser, o.ParsedWords = "0.32.0", true, reasoning, "hermes", 10
		}
	}
	split := func(o *fakevllm.Options) { o.Version, o.SplitCharacters = "0.32.0", true }
	whole := func(o *fakevllm.Options) { o.Version = "0.32.0" }
	schema := `,"response_format":{"type":"json_schema","json_schema":{"name":"a","schema":{}}}`
	greedy := `,"temperature":0`
	for i, c := range []struct {
		name, path, more string
		engine           func(*fakevllm.Options)
		how              []string // ways that occur
		refused          string   // reason that occurs; "" if all cuts continue
	}{
		{"completion", completionsPath, `,"ignore_eos":true`, split, []string{"prompt"}, ""},
		{"completion, several ids in an event", completionsPath, `,"stream_interval":4`, split, []string{"prompt"}, ""},
		{"completion, stop strings", completionsPath, `,"stop":["never written","xyz"]`, split, []string{"prompt"}, ""},
		{"completion, token ids", completionsPath, `,"return_token_ids":true`, whole, []string{"prompt"}, ""},
		{"chat, token ids", chatPath, `,"return_token_ids":true`, whole, []string{"chat"}, ""},
		{"completion, logprobs", completionsPath, `,"logprobs":1`, split, []string{"prompt"}, continuation.ReasonSeam},
		{"completion, logprobs, greedy", completionsPath, `,"logprobs":1,"stream_interval":3` + greedy, split, []string{"prompt", "replay"}, ""},
		{"chat, logprobs", chatPath, `,"logprobs":true,"top_logprobs":1`, split, []string{"chat"}, continuation.ReasonSeam},
		{"chat, logprobs, stop strings", chatPath, `,"logprobs":true,"top_logprobs":1,"stop":["never written","xyz"]`, whole, []string{"chat"}, ""},
		{"chat, logprobs, greedy", chatPath, `,"logprobs":true,"top_logprobs":1` + greedy, split, []string{"chat", "replay"}, ""},
		{"reasoning, logprobs, greedy", chatPath, `,"logprobs":true,"top_logprobs":1` + greedy, parsers("qwen3"), []string{"chat", "replay"}, ""},
		{"chat", chatPath, `,"ignore_eos":true`, split, []string{"chat"}, ""},
		{"chat, stop strings", chatPath, `,"stop":["never written","xyz"]`, split, []string{"chat"}, ""},
		{"chat, several ids in an event", chatPath, `,"stream_interval":4`, split, []string{"chat"}, ""},
		{"chat, continuous usage", chatPath, `,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`, split, []string{"chat"}, ""},
		{"reasoning and tools", chatPath, offeredTools, parsers("qwen3"), []string{"chat"}, continuation.ReasonToolCall},
		{"reasoning and stop strings", chatPath, `,"stop":["never written","xyz"]`, parsers("qwen3"), []string{"chat"}, ""},
		{"reasoning of R1 and tools", chatPath, offeredTools, parsers("deepseek_r1"), []string{"chat"}, continuation.ReasonToolCall},
		{"reasoning and tools, greedy", chatPath, offeredTools + greedy, parsers("qwen3"), []string{"chat", "replay"}, ""},
		{"schema", chatPath, schema, split, nil, continuation.ReasonStructure},
		{"schema, greedy", chatPath, schema + greedy, split, []string{"replay"}, ""},
		{"schema after reasoning, greedy", chatPath, schema + greedy, parsers("qwen3"), []string{"replay"}, ""},
		{"penalty, greedy", completionsPath, `,"presence_penalty":0.5` + greedy, split, []string{"replay"}, ""},
		{"old engine", chatPath, "", func(o *fakevllm.Options) { o.Version, o.SplitCharacters = "0.30.1", true }, nil, continuation.ReasonOldEngine},
		{"responses", responsesPath, "", split, nil, continuation.ReasonAPI},
		{"responses, greedy", responsesPath, greedy, split, []string{"replay"}, ""},
		{"responses with reasoning, several ids in an event, greedy", responsesPath, greedy + `,"stream_interval":3`, parsers("qwen3"), []string{"replay"}, ""},
		{"responses, tools, greedy", responsesPath, `,"tools":[{"type":"function","name":"look"},{"type":"function","name":"go_on"}]` + greedy, parsers("qwen3"), []string{"replay"}, ""},
		{"messages", messagesPath, "", split, nil, continuation.ReasonAPI},
		{"messages, greedy", messagesPath, greedy, split, []string{"replay"}, ""},
		{"messages, tools, greedy", messagesPath, `,"tools":[{"name":"look","input_schema":{}},{"name":"go_on","input_schema":{}}]` + greedy, parsers("qwen3"), []string{"replay"}, ""},
		{"messages with reasoning, tools, aborted, greedy", messagesPath, `,"tools":[{"name":"look","input_schema":{}},{"name":"go_on","input_schema":{}}]` + greedy, parsers("qwen3"), []string{"replay"}, ""},
		{"old engine, greedy", chatPath, greedy, func(o *fakevllm.Options) { o.Version, o.SplitCharacters = "0.30.1", true }, []string{"replay"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := startTuned(t, fakevllm.NIXL, 2, 3, tuning{forward: func(o *forward.Options) { o.ContinueStreams, o.RetryRatio = 9, -1 }, engine: c.engine, sched: noProbes,
				health: func(o *health.Options) { o.MaxFailures = 1 << 20 }})
			r.recordVersion(engineOptions(c.engine).Version)
			refused, kind := 0, fakevllm.FaultClose
			if strings.Contains(c.name, "aborted") {
				kind = fakevllm.FaultAbort
			}
			last, step := 62, longform.Count(3, 2) // the answer ends before
			tools := strings.Contains(c.more, "tools")
			if tools {
				last = 80
			}
			for cut := 1 + i%step; cut <= last; cut += step {
				at := cut
				body := strings.Replace(sixtyBody(c.path, c.more), "the sea", fmt.Sprint("sea ", cut), 1)
				if tools {
					body, at = strings.Replace(body, `"max_tokens":60`, `"max_tokens":300`, 1), 2*cut
				}
				for _, d := range r.D {
					d.ClearFaults()
					script(t, d, fakevllm.Fault{Kind: kind, Tokens: at, Times: 1})
				}
				a := r.post(c.path, body)
				a.require(t, http.StatusOK)
				if e := r.entry(); e.Outcome == relay.OutcomeBroken && c.refused != "" {
					if got, err := sseanswer.Read(string(a.body)); err != nil || got.Error == "" {
						t.Fatalf("after %d tokens: %v in %s", cut, err, a.body)
					} else if n := strings.Count(string(a.body), `"sequence_number":`) - 1; n >= 0 && !strings.Contains(got.Error, fmt.Sprintf(`"sequence_number":%d,`, n)) {
						t.Fatalf("after %d tokens, the error is not event %d: %s", cut, n, a.body)
					}
					refused++
					continue
				}
				r.checkOne(a, c.path, body, engineOptions(c.engine))
				require.False(t, t.Failed(), "after %d tokens: continued %v", cut, r.rec.moved)
			}
			ways, reasons := map[string]int{}, map[string]int{}
			for _, m := range r.rec.moved {
				_, how, _ := strings.Cut(m, " ")
				ways[how]++
			}
			for _, m := range r.rec.stayed {
				reasons[m]++
			}
			t.Logf("ways %v, refused %v", ways, reasons)
			for _, how := range c.how {
				assert.NotEqual(t, 0, ways[how], "none went on by %s", how)
				delete(ways, how)
			}
			delete(ways, "completed")
			if len(ways) > 0 || reasons[c.refused] != refused || len(r.rec.stayed) != refused || (refused > 0) != (c.refused != "") {
				t.Errorf("other ways %v, %d broken, reasons %v", ways, refused, reasons)
			}
			r.checkEngines()
		})
	}
}

// recordVersion sets the version of vLLM in the records of all instances.
func (r *rig) recordVersion(version string) {
	r.members.change(func(in *instance.Instance) { in.Record.Version = version })
}

// If an instance is drained with a time to move, its streams continue on another one, and streams that cannot
// move run to their end.
func TestStreamsMoveOffDrainedInstance(t *testing.T) {
	t.Parallel()
	for more, moves := range map[string]bool{`,"ignore_eos":true`: true, `,"ignore_eos":true,"seed":5`: false} {
		t.Run(fmt.Sprint(moves), func(t *testing.T) {
			t.Parallel()
			r := startTuned(t, fakevllm.NIXL, 1, 2, tuning{forward: continuing, engine: slowly, sched: noProbes})
			body := strings.Replace(sixtyBody(completionsPath, more), `"max_tokens":60`, `"max_tokens":200`, 1)
			ended := async(func() answer { return r.post(completionsPath, body) })
			var busy *fakevllm.Server
			eventually(t, "a stream runs", func() bool {
				for _, d := range r.D {
					if d.Counters().GenerationTokens > 3 {
						busy = d
					}
				}
				return busy != nil
			})
			r.moveOff(busy)
			r.checkOne(<-ended, completionsPath, body, engineOptions(slowly))
			if moves {
				r.checkMoved(string(leg.Removed) + " prompt")
			} else {
				r.checkMoved()
			}
			r.checkEngines()
		})
	}
}

// The streams of an instance whose engine was restarted are continued as soon as they are silent.
func TestStreamContinuesAfterRestart(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.NIXL, 1, 2, continuing)
	script(t, r.D[0], fakevllm.Fault{Kind: fakevllm.FaultHang, Tokens: 5, Times: 1})
	body := sixtyBody(completionsPath, "")
	resp, err := http.Post(r.URL+completionsPath, "application/json", strings.NewReader(body)) //nolint:noctx // the rig ends it
	require.NoError(t, err)
	defer resp.Body.Close()
	var first [1]byte
	if _, err := io.ReadFull(resp.Body, first[:]); err != nil { // the answer is committed
		t.Fatal(err)
	}
	r.members.changeAt(r.D[0], func(in *instance.Instance) { in.Record.ID = "restarted" })
	got := readRest(resp, io.MultiReader(bytes.NewReader(first[:]), resp.Body))
	r.checkOne(got, completionsPath, body, engineOptions(func(*fakevllm.Options) {}))
	r.checkMoved(string(leg.Removed) + " prompt")
}
