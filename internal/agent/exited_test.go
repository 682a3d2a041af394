package agent

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/engine/vllm"
)

func TestEngineProcessEnds(t *testing.T) {
	for _, tc := range []struct {
		name   string
		engine *fakeEngine
		drain  bool // it ends during its drain
		hang   bool // it has not answered for a second
		want   []string
	}{
		{"while it loads", &fakeEngine{err: errRefused}, false, false, nil},
		{"while it serves", &fakeEngine{stats: idleStats()}, false, false, []string{"0s ready org/m", "3s down org/m", "3s settle", "3s revoke"}},
		{"while it is asked", &fakeEngine{stats: idleStats()}, false, true, []string{"0s ready org/m", "3s down org/m", "3s settle", "3s revoke"}},
		{
			"while it drains", &fakeEngine{stats: vllm.Stats{Complete: true, Running: 1}}, true, false,
			[]string{"0s ready org/m", "1s draining org/m", "1s settle", "3s revoke"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				exited := make(chan struct{})
				r := start(t, tc.engine, Options{Exited: exited})
				r.after(time.Second, nil)
				if tc.drain {
					r.stop()
				}
				tc.engine.change(func(e *fakeEngine) { e.hang = tc.hang })
				r.after(2*time.Second, nil)
				close(exited)
				assert.NoError(t, <-r.done)
				r.stop()
				wantLog(t, r.reg.lines(), tc.want...)
				s := r.Status()
				assert.True(t, s.Phase == Gone && !s.Beat.IsZero(), "status %+v", s)
			})
		})
	}
}

// A large model loads for minutes: the agent does not give up,
// and registers the engine with the first successful probe.
func TestEngine_LoadsForMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &fakeEngine{err: errRefused, stats: idleStats()}
		r := start(t, e, Options{Exited: make(chan struct{})})
		r.after(5*time.Minute, func(e *fakeEngine) { e.err = nil })
		assert.Equal(t, Probing, r.Status().Phase)
		r.after(MaxBackoff, nil)
		assert.Equal(t, Registering, r.Status().Phase)
		r.Hurry()
		_ = r.end()
	})
}
