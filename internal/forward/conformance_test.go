package forward_test

import (
	"context"
	"strings"
	"testing"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// What every dialect of the registry holds, against engines that speak it as strictly as
// real ones: no dialect is listed here, so that none can be forgotten.
//
//	order                                   TestConformanceAbort: who has a leg while prefill hangs
//	abort at each point                     TestConformanceAbort
//	failure of each leg                     TestConformanceFailures
//	restart between the legs                restart_test.go; TestConcurrentInstanceRestarts, TestNotifiedInstanceGone
//	64-bit integers, unknown fields         TestConformanceBytes; hand-overs: engines refuse what has changed
//	wrong pairs                             TestWrongPairs

// everyDialectOfAll runs a test for every dialect of the registry.
func everyDialectOfAll(t *testing.T, f func(t *testing.T, c connector.Dialect)) {
	t.Helper()
	for _, name := range connector.Names() {
		c, err := connector.New(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, c)
		})
	}
}

// allRight holds that nothing wrong came out of decode, and nothing arrived anywhere that
// engines would not bear.
func (r *rig) allRight() {
	r.t.Helper()
	if n := total(r.D, func(c fakevllm.Counters) int64 { return c.WrongKV }); n != 0 {
		r.t.Errorf("%d answers out of other blocks", n)
	}
	r.strict()
}

// The client leaves while prefill computes, while decode has not begun, and in the stream:
// both engines are idle then, and nobody is tried again. While prefill computes decode has
// its leg if the legs run at once, and only then.
func TestConformanceAbort(t *testing.T) {
	t.Parallel()
	everyDialectOfAll(t, func(t *testing.T, c connector.Dialect) {
		for _, at := range []struct {
			name    string
			prefill bool
			fault   fakevllm.Fault
		}{
			{"prefill", true, fakevllm.Fault{Kind: fakevllm.FaultHang, At: fakevllm.AfterRead, Times: 1}},
			{"decode", false, fakevllm.Fault{Kind: fakevllm.FaultHang, At: fakevllm.AfterRead, Times: 1}},
			{"stream", false, fakevllm.Fault{Kind: fakevllm.FaultHang, At: fakevllm.AfterTokens, Tokens: 2, Times: 1}},
		} {
			r := start(t, fakevllm.Mode(c.Name()), 1, 1, nil)
			engine := r.D[0]
			if at.prefill {
				engine = r.P[0]
			}
			script(t, engine, at.fault)
			ctx, leave := context.WithCancel(t.Context())
			done := make(chan answer, 1)
			go func() { done <- r.postCtx(ctx, "/v1/chat/completions", chatBody(true, "")) }()
			eventually(t, at.name+": it hangs", func() bool { return engine.Counters().Faults == 1 })
			if at.prefill && c.Flow() == connector.Concurrent {
				eventually(t, "decode has its leg at once", func() bool { return legs(r.D) == 1 })
			}
			if at.prefill && c.Flow() != connector.Concurrent && legs(r.D) != 0 {
				t.Error("decode has its leg before prefill has answered")
			}
			leave()
			<-done
			if e := r.entry(); e.Outcome != forward.OutcomeClientGone || r.rec.retried() != "" {
				t.Errorf("%s: %+v, retried %q", at.name, e, r.rec.retried())
			}
			eventually(t, at.name+": both engines are idle", func() bool {
				return total(append(r.P, r.D...), func(c fakevllm.Counters) int64 { return c.Running + c.Waiting }) == 0
			})
			r.allRight()
		}
	})
}

// Whatever one leg does before the client has seen anything is hidden by another pair.
func TestConformanceFailures(t *testing.T) {
	t.Parallel()
	faults := map[string]fakevllm.Fault{
		"500":         {Kind: fakevllm.FaultStatus, Status: 500, Times: 1},
		"503":         {Kind: fakevllm.FaultStatus, Status: 503, Times: 1},
		"429":         {Kind: fakevllm.FaultStatus, Status: 429, Times: 1},
		"reset":       {Kind: fakevllm.FaultReset, Times: 1},
		"closed":      {Kind: fakevllm.FaultClose, Times: 1},
		"garbage":     {Kind: fakevllm.FaultGarbage, Times: 1},
		"aborted":     {Kind: fakevllm.FaultAbort, Times: 1},
		"error event": {Kind: fakevllm.FaultErrorEvent, Times: 1},
		"dies":        {Kind: fakevllm.FaultDie, Times: 1},
	}
	everyDialectOfAll(t, func(t *testing.T, c connector.Dialect) {
		for _, prefill := range both() {
			for name, fault := range faults {
				r := start(t, fakevllm.Mode(c.Name()), 2, 2, nil)
				engine := r.D[0]
				if prefill {
					engine = r.P[0]
				}
				script(t, engine, fault)
				body := chatBody(true, "")
				r.complete(r.post("/v1/chat/completions", body), true, body)
				// Beside a decode leg, prefill may have handed over all before it fails: then decode
				// may have begun to answer, and there is nothing to repeat.
				e := r.entry()
				begun := prefill && c.Flow() == connector.Concurrent && e.Attempts == 0
				if e.Alone != "" || e.Attempts != 1 && !begun {
					t.Errorf("%s, of prefill %t: %+v", name, prefill, e)
				}
				r.allRight()
				eventually(t, "no engine works on what was given up", func() bool {
					return total(append(r.P, r.D...), func(c fakevllm.Counters) int64 { return c.Running + c.Waiting + c.WaitingForKV }) == 0
				})
			}
		}
	})
}

// What the proxy does not know goes to both legs as the client wrote it.
func TestConformanceBytes(t *testing.T) {
	t.Parallel()
	const unknown = `"x_big":18446744073709551615, "x_odd" : [1.0e+05,-0.0,{"a":"\u00e9\/","a":9007199254740993}]`
	everyDialectOfAll(t, func(t *testing.T, c connector.Dialect) {
		for _, stream := range both() {
			r := start(t, fakevllm.Mode(c.Name()), 1, 1, nil)
			body := chatBody(stream, ","+unknown)
			r.complete(r.post("/v1/chat/completions", body), true, body)
			if e := r.entry(); e.Alone != "" {
				t.Errorf("alone: %s", e.Alone)
			}
			for _, s := range []*fakevllm.Server{r.P[0], r.D[0]} {
				list := posted(s)
				if len(list) != 1 || !strings.Contains(string(list[0].Body), unknown) {
					t.Errorf("%d legs: %+v", len(list), list)
				}
			}
			r.allRight()
		}
	})
}
