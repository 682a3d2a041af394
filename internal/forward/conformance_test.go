package forward_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/forward/relay"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// These tests run over every dialect of the registry, against engines that are as strict as
// real ones. The dialects are not listed here, so that none can be forgotten.
//
//	order                                   TestConformanceAbort: which engine has a leg while prefill hangs
//	abort at each point                     TestConformanceAbort
//	failure of each leg                     TestConformanceFailures, TestDecodeFailureBeforeCommit
//	restart between the legs                restart_test.go; TestConcurrentInstanceRestarts, TestNotifiedInstanceRemoved
//	64-bit integers, unknown fields         TestConformanceBytes; KV transfers: engines refuse changed ones
//	wrong pairs                             TestWrongPairs

// eachDialect runs a test for every dialect of the registry.
func eachDialect(t *testing.T, f func(t *testing.T, c connector.Dialect)) {
	t.Helper()
	for _, name := range connector.Names() {
		c, err := connector.New(name)
		require.NoError(t, err)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, c)
		})
	}
}

// checkAnswers fails if decode computed a wrong answer or a prompt, or if an engine got a request
// that would harm it.
func (r *rig) checkAnswers() {
	r.t.Helper()
	assert.EqualValues(r.t, 0, total(r.D, func(c fakevllm.Counters) int64 { return c.WrongKV }), "answers out of other blocks")
	n := total(r.D, func(c fakevllm.Counters) int64 { return c.LocalPrefills })
	assert.True(r.t, n == 0, "decode computed %d prompts", n)
	r.checkEngines()
}

// If the client leaves while prefill computes, before decode begins, or in the stream, both engines become
// idle, no instance is blamed, and nothing is retried. Decode has its leg while prefill computes only if the
// legs run at once.
func TestConformanceAbort(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, c connector.Dialect) {
		paths := []string{chatPath}
		if c.Name() == "nixl" { // other APIs have no pair in some dialects
			paths = apis()
		}
		for _, at := range []struct {
			name  string
			role  instance.Role
			fault fakevllm.Fault
		}{
			{"prefill", instance.Prefill, fakevllm.Fault{Kind: fakevllm.FaultHang, At: fakevllm.AfterRead, Times: 1}},
			{"decode", instance.Decode, fakevllm.Fault{Kind: fakevllm.FaultHang, At: fakevllm.AfterRead, Times: 1}},
			{"role", instance.Decode, fakevllm.Fault{Kind: fakevllm.FaultHang, At: fakevllm.AfterRole, Times: 1}},
			{"stream", instance.Decode, fakevllm.Fault{Kind: fakevllm.FaultHang, At: fakevllm.AfterTokens, Tokens: 2, Times: 1}},
		} {
			for _, path := range paths {
				r, q := start(t, fakevllm.Mode(c.Name()), 1, 1, nil), scenario{path, true}
				engine, first := r.engines(at.role)[0], at.role == instance.Prefill
				script(t, engine, at.fault)
				ctx, leave := context.WithCancel(t.Context())
				done := async(func() answer { return r.postCtx(ctx, path, q.body("")) })
				eventually(t, at.name+": it hangs", func() bool { return engine.Counters().Faults == 1 })
				if first && c.Flow() == connector.Concurrent {
					eventually(t, "decode has its leg at once", func() bool { return legs(r.D) == 1 })
				}
				assert.False(t, first && c.Flow() != connector.Concurrent && legs(r.D) != 0,
					"decode has its leg before prefill has answered")
				leave()
				<-done
				if e := r.entry(); e.Outcome != relay.OutcomeClientGone || e.Status != 499 || r.rec.retried() != "" {
					t.Errorf("%s: %+v, retried %q", at.name, e, r.rec.retried())
				}
				eventually(t, at.name+": both engines are idle", func() bool {
					return total(append(r.P, r.D...), func(c fakevllm.Counters) int64 { return c.Running + c.Waiting }) == 0
				})
				r.noneTroubled()
				r.checkAnswers()
			}
		}
	})
}

// A failure of a leg before the client has received anything is hidden by a retry with another pair.
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
		"cut":         {Kind: fakevllm.FaultClose, At: fakevllm.AfterTokens, Times: 1}, // only for prefill, like "hangs"
		"hangs":       {Kind: fakevllm.FaultHang, Times: 1},
	}
	eachDialect(t, func(t *testing.T, c connector.Dialect) {
		for _, role := range instance.Roles() {
			prefill := role == instance.Prefill
			for name, fault := range faults {
				if !prefill && (name == "cut" || name == "hangs") {
					continue // after the commit, or only at the client's own limit
				}
				if !prefill && name != "dies" && slices.Contains(sequentialModes(), fakevllm.Mode(c.Name())) {
					continue // in TestDecodeFailureBeforeCommit
				}
				r := start(t, fakevllm.Mode(c.Name()), 2, 2, func(o *forward.Options) {
					if name == "hangs" { // the other instance must answer within it
						o.Prefill = 3 * time.Second
					}
				})
				script(t, r.engines(role)[0], fault)
				body := chatBody(true, "")
				r.checkComplete(r.post("/v1/chat/completions", body), true, body)
				// A prefill that fails during a decode leg may have sent its KV cache before: then decode
				// may have begun to answer, and nothing is retried.
				e := r.entry()
				begun := prefill && c.Flow() == connector.Concurrent && e.Failed == 0
				if e.DecodeOnly != "" || e.Failed != 1 && !begun {
					t.Errorf("%s, of %s: %+v", name, role, e)
				}
				r.checkAnswers()
				eventually(t, "no engine works on what was given up", func() bool {
					return total(append(r.P, r.D...), func(c fakevllm.Counters) int64 { return c.Running + c.Waiting + c.WaitingForKV }) == 0
				})
			}
		}
	})
}

// Fields that the proxy does not know go to both legs as the client wrote them.
func TestConformanceBytes(t *testing.T) {
	t.Parallel()
	const unknown = `"x_big":18446744073709551615, "x_odd" : [1.0e+05,-0.0,{"a":"\u00e9\/","a":9007199254740993}]`
	eachDialect(t, func(t *testing.T, c connector.Dialect) {
		for _, stream := range both() {
			r := start(t, fakevllm.Mode(c.Name()), 1, 1, nil)
			body := chatBody(stream, ","+unknown)
			r.checkComplete(r.post("/v1/chat/completions", body), true, body)
			e := r.entry()
			assert.Equal(t, "", e.DecodeOnly, "decode-only")
			for _, s := range []*fakevllm.Server{r.P[0], r.D[0]} {
				list := posted(s)
				assert.True(t, len(list) == 1 && strings.Contains(string(list[0].Body), unknown), "%d legs: %+v", len(list), list)
			}
			r.checkAnswers()
		}
	})
}
