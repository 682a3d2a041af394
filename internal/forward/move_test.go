package forward_test

import (
	"strings"
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// moveOff drains an instance whose streams may move at once.
func (r *rig) moveOff(s *fakevllm.Server) { r.moveOffAfter(s, 0) }

// moveOffAfter drains an instance whose streams may move after some time.
func (r *rig) moveOffAfter(s *fakevllm.Server, after time.Duration) {
	r.members.changeAt(s, func(in *instance.Instance) { in.Intent, in.MoveAfter = instance.Drain, &after })
}

// slowly makes engines write a token every 10 ms: a stream of 200 must not end before a busy test has drained
// its instance.
func slowly(o *fakevllm.Options) { o.Version, o.ITL = "0.32.0", 10*time.Millisecond }

// While streams that move wait for their new engine, the others stay on the drained one.
func TestStreams_StayWhileOthersMove(t *testing.T) {
	t.Parallel()
	const streams, turns = 12, 4
	r := startTuned(t, fakevllm.NIXL, 1, 2, tuning{forward: continuing, engine: slowly, sched: noProbes})
	all := r.members.Snapshot().All()
	r.members.remove(r.D[1])
	script(t, r.D[1], fakevllm.Fault{Kind: fakevllm.FaultHang})
	body := strings.Replace(sixtyBody(completionsPath, `,"ignore_eos":true`), `"max_tokens":60`, `"max_tokens":400`, 1)
	ended := make(chan answer, streams)
	for range streams {
		go func() { ended <- r.post(completionsPath, body) }()
	}
	eventually(t, "all streams run", func() bool {
		return r.D[0].Counters().Running == streams && r.D[0].Counters().GenerationTokens > 2*streams
	})
	r.members.set(all...)
	r.moveOff(r.D[0])
	check := func(n int) {
		for range n {
			r.checkOne(<-ended, completionsPath, body, engineOptions(slowly))
		}
	}
	check(streams - turns)
	r.members.set(all...)
	r.members.remove(r.D[1])
	check(turns)
	r.checkMoved("gone prompt", "gone prompt", "gone prompt", "gone prompt")
}

// A stream stays on a drained instance that is the last one, even if it could be repeated.
func TestStreamStays_LastInstance(t *testing.T) {
	t.Parallel()
	for name, more := range map[string]string{"chat": "", "replay": `,"temperature":0,"response_format":{"type":"json_schema","json_schema":{"name":"a","schema":{}}}`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := startTuned(t, fakevllm.NIXL, 1, 1, tuning{forward: continuing, engine: slowly, sched: noProbes})
			r.recordVersion("0.32.0")
			body := strings.Replace(sixtyBody(chatPath, `,"ignore_eos":true`+more), `"max_tokens":60`, `"max_tokens":200`, 1)
			ended := async(func() answer { return r.post(chatPath, body) })
			eventually(t, "the stream runs", func() bool { return r.D[0].Counters().GenerationTokens > 3 })
			r.moveOff(r.D[0])
			r.checkOne(<-ended, chatPath, body, engineOptions(slowly))
			r.checkMoved()
			r.checkEngines()
		})
	}
}

// A chat does not move to an engine that would ignore its token ids, nor does it continue there after its leg
// was lost. A greedy chat may be repeated there.
func TestChatsAndOldEngines(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, more string
		lost       bool // by an error; otherwise by a drain
		third      bool // a third decode instance is as new as the first one
		moves      []string
	}{
		{"drained", "", false, false, nil},
		{"drained, greedy", `,"temperature":0`, false, false, []string{string(leg.Removed) + " replay"}},
		{"drained, another one", "", false, true, []string{string(leg.Removed) + " chat"}},
		{"lost, greedy", `,"temperature":0`, true, false, []string{"error_event replay"}},
		{"lost, another one", "", true, true, []string{"error_event chat"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			decodes, left := 2, 1
			if tc.third {
				decodes = 3
			}
			var old string
			r := startTuned(t, fakevllm.Plain, 1, decodes, tuning{forward: continuing, sched: noProbes, engine: func(o *fakevllm.Options) {
				if slowly(o); o.Role == fakevllm.RoleDecode {
					if left--; left == 0 {
						o.Version, old = "0.30.1", o.Addr
					}
				}
			}})
			r.members.change(func(in *instance.Instance) {
				if in.Record.Version = "0.32.0"; in.Address == old {
					in.Record.Version = "0.30.1"
				}
			})
			all := r.members.Snapshot().All()
			var first *fakevllm.Server
			for _, d := range r.D {
				if first == nil && d.Address() != old {
					first = d
					continue
				}
				r.members.remove(d)
			}
			if tc.lost {
				script(t, first, fakevllm.Fault{Kind: fakevllm.FaultErrorEvent, Tokens: 60, Times: 1})
			}
			body := strings.Replace(sixtyBody(chatPath, `,"ignore_eos":true`+tc.more), `"max_tokens":60`, `"max_tokens":200`, 1)
			ended := async(func() answer { return r.post(chatPath, body) })
			eventually(t, "the stream runs", func() bool { return first.Counters().GenerationTokens > 3 })
			r.members.set(all...)
			if !tc.lost {
				r.moveOff(first)
			}
			r.checkOne(<-ended, chatPath, body, engineOptions(slowly))
			r.checkMoved(tc.moves...)
			r.checkEngines()
		})
	}
}

// A stream that could not leave a drained instance stays on it after the drain was undone, even when another
// drain begins.
func TestStreamStays_DrainUndone(t *testing.T) {
	t.Parallel()
	r := startTuned(t, fakevllm.NIXL, 1, 2, tuning{forward: continuing, engine: slowly, sched: noProbes})
	all := r.members.Snapshot().All()
	r.members.remove(r.D[1])
	body := strings.Replace(sixtyBody(completionsPath, `,"ignore_eos":true`), `"max_tokens":60`, `"max_tokens":200`, 1)
	ended := async(func() answer { return r.post(completionsPath, body) })
	generates := func(n int64) {
		t.Helper()
		eventually(t, "the stream runs", func() bool { return r.D[0].Counters().GenerationTokens > n })
	}
	generates(3)
	r.moveOff(r.D[0])
	generates(r.D[0].Counters().GenerationTokens + 10) // the snapshot is applied
	r.members.set(all...)
	generates(r.D[0].Counters().GenerationTokens + 10)
	r.moveOffAfter(r.D[0], time.Hour)
	r.checkOne(<-ended, completionsPath, body, engineOptions(slowly))
	r.checkMoved()
}

// A stream that moves continues even if prefill is full, or if the only other decode instance fails once: its
// client cannot send the request again.
func TestStreamMovesDespiteFailures(t *testing.T) {
	t.Parallel()
	for name, at := range map[string]func(*rig) (*fakevllm.Server, fakevllm.Fault){
		"prefill full": func(r *rig) (*fakevllm.Server, fakevllm.Fault) {
			return r.P[0], fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: 429}
		},
		"decode fails once": func(r *rig) (*fakevllm.Server, fakevllm.Fault) {
			return r.D[1], fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: 503, Times: 1}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := startTuned(t, fakevllm.NIXL, 1, 2, tuning{forward: continuing, engine: slowly, sched: noProbes})
			all := r.members.Snapshot().All()
			r.members.remove(r.D[1])
			body := strings.Replace(sixtyBody(completionsPath, `,"ignore_eos":true`), `"max_tokens":60`, `"max_tokens":400`, 1)
			ended := async(func() answer { return r.post(completionsPath, body) })
			eventually(t, "the stream runs", func() bool { return r.D[0].Counters().GenerationTokens > 3 })
			server, fault := at(r)
			script(t, server, fault)
			r.members.set(all...)
			r.moveOff(r.D[0])
			r.checkOne(<-ended, completionsPath, body, engineOptions(slowly))
			r.checkMoved("gone prompt")
		})
	}
}
