package forward_test

import (
	"strings"
	"sync/atomic"
	"testing"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/forward/flow"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// panickingHealth panics when an instance of the role has served.
type panickingHealth struct {
	flow.Health
	role   instance.Role
	panics *atomic.Int64
}

func (f panickingHealth) Success(in *instance.Instance, model string) {
	if in.Role == f.role {
		f.panics.Add(1)
		panic("test")
	}
}

// panickingRecorder panics when --disaggregate has decided about a request.
type panickingRecorder struct {
	*recorder
	panics *atomic.Int64
}

func (u panickingRecorder) Disaggregated(bool, string, float64) {
	u.panics.Add(1)
	panic("test")
}

// The router continues after a panic. The request's in-flight counts must be released, or no drain would end,
// and so must the memory of its body, or later requests would be refused.
func TestPanic_ReleasesInFlight(t *testing.T) {
	t.Parallel()
	type tune func(*forward.Options, *atomic.Int64)
	of := func(role instance.Role, never bool) tune {
		return func(o *forward.Options, panics *atomic.Int64) {
			o.Health = panickingHealth{o.Health, role, panics}
			if never {
				o.Disaggregate = &flow.Disaggregate{Never: true}
			}
		}
	}
	for name, tc := range map[string]struct {
		mode fakevllm.Mode
		tune tune
	}{
		"prefill":            {fakevllm.NIXL, of(instance.Prefill, false)},
		"decode":             {fakevllm.NIXL, of(instance.Decode, false)},
		"concurrent prefill": {fakevllm.Mooncake, of(instance.Prefill, false)},
		"concurrent decode":  {fakevllm.Mooncake, of(instance.Decode, false)},
		"notified decode":    {fakevllm.LMCache, of(instance.Decode, false)},
		"decode-only":        {fakevllm.NIXL, of(instance.Decode, true)},
		"a decision": {fakevllm.NIXL, func(o *forward.Options, panics *atomic.Int64) {
			o.Disaggregate, o.Recorder = new(flow.Disaggregate), panickingRecorder{o.Recorder.(*recorder), panics}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var panics atomic.Int64
			r := start(t, tc.mode, 1, 1, func(o *forward.Options) { tc.tune(o, &panics) })
			r.post("/v1/chat/completions", chatBody(false, `,"user":"`+strings.Repeat("u", 64<<10)+`"`))
			eventually(t, "nothing is in flight", func() bool {
				left := panics.Load() == 0 // the answer may be out before the panic
				r.sched.Loads.Each(func(_ instance.Key, n int64) { left = left || n != 0 })
				return !left
			})
			r.waitForHeld("the body is released", func(held int64) bool { return held == 0 })
		})
	}
}
