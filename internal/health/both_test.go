package health_test

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/health"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// engineIn returns the engine at x:1 in a role, with an incarnation.
func engineIn(role instance.Role, id string) *instance.Instance {
	in := instanceAt(role, "x:1")
	in.Record.ID = id
	return in
}

// An engine in both roles has one record: findings in one role apply to the other, and one prober probes it.
func TestBothRoles_OneRecord(t *testing.T) {
	t.Parallel()
	var ejected atomic.Int64
	run(t, func(o *health.Options) {
		o.OnEject = func(instance.Key, bool, string) { ejected.Add(1) }
	}, func(tr *health.Tracker, src *source, e *engine, _ *instance.Instance) {
		p, d := engineIn(instance.Prefill, "A"), engineIn(instance.Decode, "A")
		src.set(p, d)
		e.answer(errDead)
		// Strikes in both roles add up.
		tr.Strike(p, "m", "500", false)
		tr.Strike(d, "m", "500", false)
		require.True(t, tr.Available(p.Key), "two strikes have ejected it")
		require.True(t, tr.Available(d.Key), "two strikes have ejected it")
		tr.Strike(p, "m", "500", false)
		assert.False(t, tr.Available(p.Key), "it is out in one role only")
		assert.False(t, tr.Available(d.Key), "it is out in one role only")
		tr.Eject(d, "cannot connect")
		tr.Eject(p, "cannot connect")
		require.True(t, tr.Unreachable(p.Key), "it can be reached in one role")
		assert.True(t, tr.Unreachable(d.Key), "it can be reached in one role")
		list := tr.Troubled()
		slices.SortFunc(list, func(a, b instance.Key) int { return strings.Compare(a.String(), b.String()) })
		assert.Equal(t, []instance.Key{d.Key, p.Key}, list, "in trouble")
		synctest.Wait()
		if n := ejected.Load(); n != 2 { // as a soft ejection, then as a hard one
			t.Errorf("%d ejections were reported", n)
		}
		before := e.probes()
		time.Sleep(10 * time.Second)
		if n := e.probes() - before; n < 4 || n > 12 { // the rate of one prober: 250 ms growing to 2 s
			t.Errorf("%d probes in ten seconds", n)
		}
		// If it leaves one role, the record of the other role is kept.
		src.set(d)
		time.Sleep(5 * time.Second)
		assert.False(t, tr.Available(d.Key), "the engine was forgiven because it left one role")
		e.answer(nil)
		time.Sleep(5 * time.Second)
		require.True(t, tr.Available(p.Key), "it answers, and is not back")
		assert.True(t, tr.Available(d.Key), "it answers, and is not back")
		// A new incarnation starts without a record.
		e.answer(errDead)
		tr.Eject(d, "cannot connect")
		src.set(engineIn(instance.Prefill, "B"), engineIn(instance.Decode, "B"))
		synctest.Wait()
		assert.False(t, tr.Trouble(), "the ejection of the former process applies to the next")
	})
}

// An engine in both roles is no peer of itself: an answer in one role does not eject it in the other.
func TestBothRoles_NotPeers(t *testing.T) {
	t.Parallel()
	run(t, func(o *health.Options) { o.PrefillOptional = true }, func(tr *health.Tracker, src *source, e *engine, _ *instance.Instance) {
		p, d := engineIn(instance.Prefill, "A"), engineIn(instance.Decode, "A")
		src.set(p, d)
		resume := e.hang("x:1")
		tr.Suspect(p)
		time.Sleep(time.Minute)
		assert.True(t, tr.Available(p.Key) && tr.SilentFor(d.Key) != 0,
			"available %t, silent in its other role for %s", tr.Available(p.Key), tr.SilentFor(d.Key))
		resume()
		time.Sleep(time.Second)
	})
}
