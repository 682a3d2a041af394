package metrics_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/discovery/watch"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/observe/metrics"
	"github.com/pdmesh/pdmesh/internal/sched"
)

func TestMembership_EtcdMetrics(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewPedanticRegistry()
	stops := false
	metrics.Membership{
		Ready:    func() (bool, bool) { return true, !stops },
		Snapshot: func() *instance.Snapshot { return instance.NewSnapshot(7, nil) },
		InFlight: func(func(instance.Key, int64)) {},
		View:     func(instance.Key) instance.View { return "" },
		Picks: func(f func(instance.Role, string, uint64)) {
			f(instance.Prefill, "session", 9)
			f(instance.Prefill, "round_robin", 0)
		},
		Picked:    func(f func(instance.Key, uint64)) { f(instance.Key{Role: instance.Decode, Address: "d:1"}, 8) },
		Elsewhere: func(f func(instance.Role, string, uint64)) { f(instance.Prefill, "zone_none", 3) },
		Both:      func(f func(instance.Role, string, uint64)) { f(instance.Decode, "no_other", 4) },
		Etcd: func() metrics.Etcd {
			return metrics.Etcd{Status: watch.Status{
				State: watch.Suspect, Audits: 5, AuditErrors: 2, Drift: 1, Epochs: 3, Lists: 5, Orphans: 6, Held: 2, Kept: make([]string, 8),
			}}
		},
	}.Register(reg)
	metrics.Hits(func(f func(instance.Key, sched.Hits)) {
		f(instance.Key{Role: instance.Prefill, Address: "p:1"}, sched.Hits{Asked: 9, Expected: 6, Found: 5})
	}).Register(reg)
	got := gathered(t, reg)
	check(t, got, map[string]float64{
		"pd_membership_state live": 0, "pd_membership_state suspect": 1, "pd_membership_live": 0,
		"pd_membership_audits_total ok": 5, "pd_membership_audits_total error": 2,
		"pd_membership_drift_total": 1, "pd_membership_epochs_total": 3, "pd_membership_relists_total": 4,
		"pd_membership_orphans": 6, "pd_membership_held": 2, "pd_membership_kept": 8, "pd_membership_revision": 7, "pd_ready": 1,
		"pd_picks_total session prefill": 9, "pd_picks_total round_robin prefill": 0, "pd_instance_picks_total d:1 decode": 8, "pd_both_picks_total no_other decode": 4, "pd_prompt_tokens_total p:1 asked": 9, "pd_prompt_tokens_total p:1 expected": 6, "pd_prompt_tokens_total p:1 found": 5, "pd_picks_elsewhere_total zone_none prefill": 3,
	})
	v, ok := got["pd_membership_snapshot_age_seconds"]
	assert.False(t, ok, "an age without a saved membership: %v", v)
	stops = true
	v, ok = gathered(t, reg)["pd_ready"]
	assert.False(t, ok, "pd_ready is %v while the proxy stops", v)
}
