package loads_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/discovery/loaddigest"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/health"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/proxy/loads"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/internal/sched/estimate"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

func TestMain(m *testing.M) { leak.Main(m) }

// If one role of an engine in both roles is drained, the digest still counts the other role's requests.
// Once those of the drained role have ended, it counts none there: "pdctl role --wait" waits for that.
func TestLoads_DrainOfOneRole(t *testing.T) {
	t.Parallel()
	const address = "10.0.0.1:8100"
	cli, l := etcdtest.Start(t).Client(t), members.Layout(t)
	w := members.Watch(t, cli, members.WatcherOptions(t))
	for _, role := range instance.Roles() {
		k := instance.Key{Role: role, Address: address}
		members.Put(t, cli, l.Instance(k), `{"v":1,"id":"A","models":["m"],"state":"ready","kv_role":"kv_both"}`)
		members.WaitFor(t, w, k, members.Usable)
	}
	tracker := health.New(health.Options{Source: w})
	t.Cleanup(tracker.Close)
	s := sched.New(sched.Options{Source: w, Health: &tracker.Records, PairKey: func(*instance.Instance) connector.PairKey { return connector.PairKey{Connector: "plain"} }})
	pick := func(role instance.Role) *sched.Assignment {
		t.Helper()
		a, err := s.Pick(sched.Request{Role: role, Model: "m", Unpaired: true})
		require.NoError(t, err)
		t.Cleanup(a.Done)
		return a
	}
	prefills := []*sched.Assignment{pick(instance.Prefill), pick(instance.Prefill)}
	for range 2 {
		pick(instance.Decode)
	}
	members.Put(t, cli, l.Override(members.Prefill(address)), `{"v":1,"state":"drain","role":"decode"}`)
	members.WaitFor(t, w, members.Prefill(address), func(in *instance.Instance) error {
		if in.OnlyRole != instance.Decode {
			return fmt.Errorf("%+v", in)
		}
		return nil
	})
	digest := (&loads.Loads{Watcher: w, Scheduler: s, Others: new(loaddigest.Watcher)}).Source()
	want := func(what string, prefill, decode int64) {
		t.Helper()
		got := map[instance.Key]int64{}
		for _, e := range digest.InFlight() {
			if e.LoadCount != (schema.LoadCount{}) {
				got[e.Key] = e.InFlight
			}
		}
		assert.Equal(t, prefill, got[members.Prefill(address)], "%s: %v, want and", what, got)
		assert.Equal(t, decode, got[members.Decode(address)], "%s: %v, want and", what, got)
	}
	want("prefill legs run", 4, 4) // an engine has one count for both roles
	prefills[0].Done()
	want("one prefill leg runs", 3, 3)
	prefills[1].Done()
	want("decode legs run", 0, 2)
	taken, err := s.Take(w.Snapshot().Usable(instance.Decode)[0])
	require.NoError(t, err)
	want("one more decode leg runs", 0, 3)
	taken.Done()
	want("it has ended", 0, 2)
}

// The pace of an instance includes all its ranks.
func TestLoads_PaceOfRanks(t *testing.T) {
	t.Parallel()
	k := members.Decode("10.0.0.1:8100")
	cli, l := etcdtest.Start(t).Client(t), members.Layout(t)
	w := members.Watch(t, cli, members.WatcherOptions(t))
	members.Put(t, cli, l.Instance(k), `{"v":1,"id":"A","models":["m"],"state":"ready","dp_size":2}`)
	members.WaitFor(t, w, k, members.Usable)
	tracker := health.New(health.Options{Source: w})
	t.Cleanup(tracker.Close)
	s := sched.New(sched.Options{Source: w, Health: &tracker.Records, PairKey: func(*instance.Instance) connector.PairKey { return connector.PairKey{Connector: "plain"} }})
	e := new(estimate.Estimator)
	for range 2 {
		a, err := s.Pick(sched.Request{Role: k.Role, Model: "m", Unpaired: true})
		require.NoError(t, err)
		t.Cleanup(a.Done)
		e.Streamed("m", estimate.Decode{Address: a.Address()}, 11, time.Second)
	}
	assert.EqualValues(t, 2, math.Round((&loads.Loads{Watcher: w, Scheduler: s, Pace: e.Pace}).Of(k).Pace.Samples),
		"after two streams")
}
