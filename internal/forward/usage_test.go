package forward_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// A stream that continues where its tokens are cached reports no more cached tokens than its prompt has.
func TestContinuedStreamUsage(t *testing.T) {
	t.Parallel()
	for _, path := range []string{completionsPath, chatPath} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			whole := func(o *fakevllm.Options) { o.Version, o.CacheBlocks = "0.32.0", 1000 }
			r := startTuned(t, fakevllm.NIXL, 0, 1, tuning{forward: continuing, engine: whole, sched: noProbes})
			r.recordVersion("0.32.0")
			script(t, r.D[0], fakevllm.Fault{Kind: fakevllm.FaultReset, Tokens: 80, Times: 2})
			body := strings.Replace(sixtyBody(path, `,"ignore_eos":true`), `"max_tokens":60`, `"max_tokens":200`, 1)
			a := r.post(path, body)
			r.checkOne(a, path, body, engineOptions(whole))
			e := r.entry()
			if e.Continued != 2 || e.Cached != e.Input || e.Output != 200 {
				t.Errorf("continued %d times, %d input tokens, %d of them cached, %d output tokens", e.Continued, e.Input, e.Cached, e.Output)
			}
		})
	}
}

// A repeated stream counts its tokens once, even if a leg is lost while it repeats them.
func TestReplayedStreamOutput(t *testing.T) {
	t.Parallel()
	for again, continued := range map[int]int{10: 1, 20: 1, 40: 2} {
		r := startTuned(t, fakevllm.NIXL, 1, 2, tuning{forward: continuing, sched: noProbes})
		script(t, r.D[0], fakevllm.Fault{Kind: fakevllm.FaultErrorEvent, Tokens: 20, Times: 1})
		script(t, r.D[1], fakevllm.Fault{Kind: fakevllm.FaultErrorEvent, Tokens: again, Times: 1})
		body := strings.Replace(sixtyBody(completionsPath, `,"ignore_eos":true,"temperature":0,"presence_penalty":0.5`), `,"stream_options":{"include_usage":true}`, "", 1)
		r.post(completionsPath, body)
		if e := r.entry(); e.Continued != continued || e.Failed != 2 || e.Output != 60 {
			t.Errorf("lost again after %d tokens: continued %d times, %d legs failed, %d output tokens", again, e.Continued, e.Failed, e.Output)
		}
	}
}

// A stream that breaks off counts its tokens, but not the other events.
func TestBrokenStreamOutput(t *testing.T) {
	t.Parallel()
	for _, path := range []string{completionsPath, chatPath, messagesPath, responsesPath} {
		for _, fault := range []fakevllm.Fault{{Kind: fakevllm.FaultAbort}, {Kind: fakevllm.FaultErrorEvent}, {Kind: fakevllm.FaultClose}} {
			fault.Tokens = 20
			for _, tune := range []tuning{{}, {forward: continuing}} {
				r := startTuned(t, fakevllm.NIXL, 1, 1, tune)
				script(t, r.D[0], fault)
				r.post(path, strings.Replace(sixtyBody(path, `,"seed":1`), `,"stream_options":{"include_usage":true}`, "", 1))
				e := r.entry()
				assert.Equal(t, 20, e.Output, "%s %s: output tokens", path, fault.Kind)
			}
		}
	}
}
