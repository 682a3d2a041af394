package watch_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

// A record without required engine ids is not usable until its engine has reported them. A restart of
// the engine is detected even if no record shows it. A later failed probe does not remove the ids.
func TestEngineIDs_Learned(t *testing.T) {
	t.Parallel()
	prober := members.NewProber()
	o := members.Probing(t, prober, "")
	o.Learns = func(_ instance.Key, rec instance.Record) bool { return len(rec.EngineIDs) == 0 }
	o.Check = func(_ instance.Key, rec instance.Record) error {
		if len(rec.EngineIDs) > 0 && rec.EngineIDs["0"] == "" {
			return errors.New("no id of rank 0")
		}
		return nil
	}
	cli, l, w := following(t, o)
	k := members.Prefill("127.0.0.1:8100")
	await := func(ok func(*instance.Instance) bool) {
		t.Helper()
		members.WaitFor(t, w, k, func(in *instance.Instance) error {
			if !ok(in) {
				return fmt.Errorf("%s %q, ids %v, life %s", in.View, in.Reason, in.Record.EngineIDs, in.Incarnation())
			}
			return nil
		})
	}
	reports := func(ids map[string]string) {
		prober.Set(k.Address, instance.Facts{Models: []string{"m"}, EngineIDs: ids})
	}
	members.Put(t, cli, l.Instance(k), `{"v":1,"models":["m"],"state":"ready"}`)
	await(func(in *instance.Instance) bool { return in.View == instance.Unverified && in.Reason != "" })
	reports(map[string]string{"1": "e1"})
	await(func(in *instance.Instance) bool {
		return in.View == instance.Rejected && in.Reason == "no id of rank 0"
	})
	reports(map[string]string{"0": "a", "1": "a_dp1"})
	await(func(in *instance.Instance) bool {
		return in.Usable() && in.Record.EngineIDs["1"] == "a_dp1" && in.Record.DPSize == 2 && in.Incarnation() == "a"
	})
	prober.Set(k.Address, instance.Facts{})
	n := prober.Count(k.Address)
	testkit.Until(t, members.Soon, func() int { return prober.Count(k.Address) }, func(got int) bool {
		return got > n+2
	})
	in, ok := w.Snapshot().Lookup(k)
	assert.True(t, ok && in.Usable() && in.Incarnation() == "a", "after probes that failed: %+v", in)
	reports(map[string]string{"0": "b"})
	await(func(in *instance.Instance) bool { return in.Usable() && in.Incarnation() == "b" })
}

// The second server of a data-parallel group names its ranks by their
// numbers in the group. A restart of its engine is still detected.
func TestSecondServerOfAGroup_Restart(t *testing.T) {
	t.Parallel()
	prober := members.NewProber()
	o := members.Probing(t, prober, "")
	o.Learns = func(_ instance.Key, rec instance.Record) bool { return len(rec.EngineIDs) == 0 }
	cli, l, w := following(t, o)
	k := members.Prefill("127.0.0.1:8100")
	members.Put(t, cli, l.Instance(k), `{"v":1,"models":["m"],"state":"ready"}`)
	for _, life := range []string{"a", "b"} {
		prober.Set(k.Address, instance.Facts{Models: []string{"m"}, EngineIDs: map[string]string{"8": life, "9": life + "_dp1"}})
		members.WaitFor(t, w, k, members.Is(func(in *instance.Instance) bool {
			return in.Usable() && in.EngineID(1) == life+"_dp1" && in.Incarnation() == life
		}))
	}
}

// Facts that an engine reports may cause its record to be refused, until it reports others.
func TestReportedFacts_MayBeRefused(t *testing.T) {
	t.Parallel()
	prober := members.NewProber()
	o := members.Probing(t, prober, "")
	o.Check = func(_ instance.Key, rec instance.Record) error {
		if rec.Version == "0.15.1" {
			return errors.New("too old")
		}
		return nil
	}
	cli, l, w := following(t, o)
	k := members.Decode("127.0.0.1:8200")
	prober.Set(k.Address, instance.Facts{Models: []string{"m"}, Version: "0.15.1"})
	members.Put(t, cli, l.Instance(k), "")
	members.WaitFor(t, w, k, members.Is(func(in *instance.Instance) bool {
		return in.View == instance.Rejected && in.Reason == "too old" && !in.Usable()
	}))
	prober.Set(k.Address, instance.Facts{Models: []string{"m"}, Version: "0.16.0"})
	members.WaitFor(t, w, k, members.Usable)
}

// The engine ids of an orphan are still probed: it serves with
// new ids, and is dropped when it does not answer.
func TestOrphan_EngineIDsProbed(t *testing.T) {
	t.Parallel()
	prober := members.NewProber()
	o := members.Probing(t, prober, "")
	o.Learns = func(_ instance.Key, rec instance.Record) bool { return len(rec.EngineIDs) == 0 }
	cli, l, w := following(t, o)
	k, held := members.Prefill("127.0.0.1:8100"), members.Lease(t, cli, 600)
	reports := func(id string) {
		prober.Set(k.Address, instance.Facts{Models: []string{"m"}, EngineIDs: map[string]string{"0": id}})
	}
	reports("a")
	members.Put(t, cli, l.Instance(k), `{"v":1,"models":["m"],"state":"ready"}`, clientv3.WithLease(held))
	members.WaitFor(t, w, k, members.Usable)
	members.Revoke(t, cli, held)
	members.WaitFor(t, w, k, orphan)
	reports("b")
	members.WaitFor(t, w, k, func(in *instance.Instance) error {
		if in.Record.EngineIDs["0"] != "b" || in.Incarnation() != "b" {
			return fmt.Errorf("ids %v", in.Record.EngineIDs)
		}
		return orphan(in)
	})
	prober.Set(k.Address, instance.Facts{})
	members.WaitFor(t, w, k, nil)
}
