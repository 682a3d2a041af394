package health_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/cli/background"
	"github.com/pdmesh/pdmesh/internal/health"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// A dead instance without an agent is ejected even if no request went there, and
// readmitted when it answers again. Instances with an agent are not probed.
func TestProbeStatic(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		change func(*instance.Instance)
		probed bool
	}{
		{"pdctl add", func(in *instance.Instance) { in.Record.Source = "admin" }, true},
		{"curl, with a lease", func(in *instance.Instance) { in.Lease = 7 }, true},
		{"a copy of an agent's record, without a lease", func(in *instance.Instance) { in.Record.Source = instance.SourceAgent }, true},
		{"cordoned", func(in *instance.Instance) { in.Intent = instance.Cordon }, true},
		{"agent", func(in *instance.Instance) { in.Lease, in.Record.Source = 7, "agent" }, false},
		{"removed", func(in *instance.Instance) { in.Intent = instance.Removed }, false},
		{"unverified", func(in *instance.Instance) { in.Verified, in.View = false, instance.Unverified }, false},
		{"down", func(in *instance.Instance) { in.Record.State = instance.Down }, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			run(t, nil, func(tr *health.Tracker, src *source, eng *engine, in *instance.Instance) {
				tc.change(in)
				src.set(in)
				stop := background.Start(t.Context(), tr.ProbeStatic)
				time.Sleep(10 * time.Second)
				synctest.Wait()
				assert.False(t, tr.Trouble(), "something is held against an instance that answers")
				assert.Equal(t, tc.probed, (eng.probes() > 0))
				eng.answer(errDead)
				time.Sleep(10 * time.Second)
				synctest.Wait()
				if e, ok := tr.Ejected(in.Key); ok != tc.probed || ok && (!tr.Unreachable(in.Key) || e != "no response: dead") {
					t.Errorf("ejected: %v, %s", ok, e)
				}
				eng.answer(nil)
				time.Sleep(10 * time.Second)
				synctest.Wait()
				assert.True(t, tr.Available(in.Key), "it answers, and is still ejected")
				stop()
			})
		})
	}
}
