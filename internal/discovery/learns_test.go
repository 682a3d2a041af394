package discovery_test

import (
	"errors"
	"fmt"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/testkit"
)

// A record without the engine ids that it needs is not usable before its engine has told
// them; a new life of the engine, of which nobody tells, is found out, and a probe that
// fails later takes nothing away.
func TestEngineIDsAreLearned(t *testing.T) {
	t.Parallel()
	cli, l, prober := testkit.StartEtcd(t).Client(t), layout(t), newProber()
	o := probing(t, prober, "")
	o.Learns = func(_ instance.Key, rec instance.Record) bool { return len(rec.EngineIDs) == 0 }
	o.Check = func(_ instance.Key, rec instance.Record) error {
		if len(rec.EngineIDs) > 0 && rec.EngineIDs["0"] == "" {
			return errors.New("no id of rank 0")
		}
		return nil
	}
	w := watch(t, cli, o)
	waitReady(t, w)
	k := prefill("127.0.0.1:8100")
	await := func(ok func(*instance.Instance) bool) {
		t.Helper()
		waitFor(t, w, k, func(in *instance.Instance) error {
			if !ok(in) {
				return fmt.Errorf("%s %q, ids %v, life %s", in.View, in.Reason, in.Record.EngineIDs, in.Incarnation())
			}
			return nil
		})
	}
	tells := func(ids map[string]string) {
		prober.set(k.Address, instance.Facts{Models: []string{"m"}, EngineIDs: ids})
	}
	put(t, cli, l.Instance(k), `{"v":1,"models":["m"],"state":"ready"}`)
	await(func(in *instance.Instance) bool { return in.View == instance.Unverified && in.Reason != "" })
	tells(map[string]string{"1": "e1"})
	await(func(in *instance.Instance) bool {
		return in.View == instance.Rejected && in.Reason == "no id of rank 0"
	})
	tells(map[string]string{"0": "a", "1": "a_dp1"})
	await(func(in *instance.Instance) bool {
		return in.Usable() && in.Record.EngineIDs["1"] == "a_dp1" && in.Record.DPSize == 2 && in.Incarnation() == "a"
	})
	prober.set(k.Address, instance.Facts{})
	n := prober.count(k.Address)
	testkit.Eventually(t, soon, func() error {
		if got := prober.count(k.Address); got <= n+2 {
			return fmt.Errorf("%d probes", got-n)
		}
		return nil
	})
	if in, ok := w.Snapshot().Lookup(k); !ok || !in.Usable() || in.Incarnation() != "a" {
		t.Errorf("after probes that failed: %+v", in)
	}
	tells(map[string]string{"0": "b"})
	await(func(in *instance.Instance) bool { return in.Usable() && in.Incarnation() == "b" })
}

// The second server of a data-parallel group names its ranks by their numbers in the
// group. A new life of its engine is told from the one before all the same.
func TestSecondServerOfAGroupBeginsANewLife(t *testing.T) {
	t.Parallel()
	cli, l, prober := testkit.StartEtcd(t).Client(t), layout(t), newProber()
	o := probing(t, prober, "")
	o.Learns = func(_ instance.Key, rec instance.Record) bool { return len(rec.EngineIDs) == 0 }
	w := watch(t, cli, o)
	k := prefill("127.0.0.1:8100")
	put(t, cli, l.Instance(k), `{"v":1,"models":["m"],"state":"ready"}`)
	for _, life := range []string{"a", "b"} {
		prober.set(k.Address, instance.Facts{Models: []string{"m"}, EngineIDs: map[string]string{"8": life, "9": life + "_dp1"}})
		waitFor(t, w, k, func(in *instance.Instance) error {
			if !in.Usable() || in.EngineID(1) != life+"_dp1" || in.Incarnation() != life {
				return fmt.Errorf("%s %q, ids %v, life %s", in.View, in.Reason, in.Record.EngineIDs, in.Incarnation())
			}
			return nil
		})
	}
}

// What an engine tells of itself may be what its record is refused for, until it tells
// something else.
func TestWhatIsFoundOutMayBeRefused(t *testing.T) {
	t.Parallel()
	cli, l, prober := testkit.StartEtcd(t).Client(t), layout(t), newProber()
	o := probing(t, prober, "")
	o.Check = func(_ instance.Key, rec instance.Record) error {
		if rec.Version == "0.15.1" {
			return errors.New("too old")
		}
		return nil
	}
	w := watch(t, cli, o)
	waitReady(t, w)
	k := decode("127.0.0.1:8200")
	prober.set(k.Address, instance.Facts{Models: []string{"m"}, Version: "0.15.1"})
	put(t, cli, l.Instance(k), "")
	waitFor(t, w, k, func(in *instance.Instance) error {
		if in.View != instance.Rejected || in.Reason != "too old" || in.Usable() {
			return fmt.Errorf("%s: %s", in.View, in.Reason)
		}
		return nil
	})
	prober.set(k.Address, instance.Facts{Models: []string{"m"}, Version: "0.16.0"})
	waitFor(t, w, k, usable)
}

// An engine whose lease was lost is asked for its ids as before, serves under new ones,
// and goes when it does not answer.
func TestOrphanTellsItsEngineIDs(t *testing.T) {
	t.Parallel()
	cli, l, prober := testkit.StartEtcd(t).Client(t), layout(t), newProber()
	o := probing(t, prober, "")
	o.Learns = func(_ instance.Key, rec instance.Record) bool { return len(rec.EngineIDs) == 0 }
	w := watch(t, cli, o)
	waitReady(t, w)
	k, held := prefill("127.0.0.1:8100"), lease(t, cli, 600)
	tells := func(id string) {
		prober.set(k.Address, instance.Facts{Models: []string{"m"}, EngineIDs: map[string]string{"0": id}})
	}
	tells("a")
	put(t, cli, l.Instance(k), `{"v":1,"models":["m"],"state":"ready"}`, clientv3.WithLease(held))
	waitFor(t, w, k, usable)
	revoke(t, cli, held)
	waitFor(t, w, k, orphan)
	tells("b")
	waitFor(t, w, k, func(in *instance.Instance) error {
		if in.Record.EngineIDs["0"] != "b" || in.Incarnation() != "b" {
			return fmt.Errorf("ids %v", in.Record.EngineIDs)
		}
		return orphan(in)
	})
	prober.set(k.Address, instance.Facts{})
	testkit.Eventually(t, soon, func() error {
		if in, ok := w.Snapshot().Lookup(k); ok {
			return fmt.Errorf("still there: %s %q", in.View, in.Reason)
		}
		return nil
	})
}
