package ratio_test

import (
	"context"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/proxy/config"
	"github.com/pdmesh/pdmesh/internal/proxy/ratio"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/internal/sched/estimate"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
	"github.com/pdmesh/pdmesh/internal/sched/roles"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

func TestMain(m *testing.M) { leak.Main(m) }

// proxy is a Follower in a fleet of engines in both roles; the only one in prefill is full.
type proxy struct {
	*ratio.Follower
	t     *testing.T
	st    *store.Store
	now   time.Time
	snap  *instance.Snapshot
	stale string
	full  bool
	rates estimate.Rates
	views map[string]instance.View // by address
}

// fleet starts an etcd with the records of four engines, and sets one role for each.
func fleet(t *testing.T, auto bool) *etcdtest.Server {
	t.Helper()
	etcd := etcdtest.Start(t)
	cli, l := etcd.Client(t), members.Layout(t)
	st := store.New(cli, l, "test")
	addresses := []string{"127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3", "127.0.0.1:4"}
	for _, address := range addresses {
		for _, k := range (instance.Key{Role: instance.Both, Address: address}).Each() {
			members.Put(t, cli, l.Instance(k), `{"models":["m"]}`)
		}
	}
	for i, address := range addresses {
		role := instance.Decode
		if i == 0 {
			role = instance.Prefill
		}
		_, err := st.Intents.SetRole(t.Context(), address, role, store.IntentOptions{Auto: auto})
		require.NoError(t, err)
	}
	return etcd
}

func newProxy(t *testing.T, etcd *etcdtest.Server, mode, name string) *proxy {
	t.Helper()
	log := logrus.New()
	log.SetOutput(io.Discard)
	line := estimate.Line{Fixed: 0.01, Each: 0.0001, Samples: 100}
	p := &proxy{
		t: t, st: store.New(etcd.Client(t), members.Layout(t), name), now: time.Unix(0, 0), full: true,
		rates: estimate.Rates{Prefill: line, Transfer: line, Token: line, Output: 10, Uncached: 5000},
	}
	p.Follower = ratio.New(ratio.Options{
		Mode: mode, Targets: roles.Targets{TTFT: 2, TPOT: 0.05}, Intents: p.st.Intents, Log: log,
		Snapshot: func() *instance.Snapshot { return p.snap },
		Load: func(k instance.Key) (sched.Total, bool) {
			out := sched.Total{InFlight: 2, Held: 1000, Engine: &policy.Engine{}}
			if p.full && k.Role == instance.Prefill {
				out.OthersWaiting = 200000
			}
			return out, true
		},
		Rates:  func(string, string) estimate.Rates { return p.rates },
		Queues: func() []instance.ListedQueue { return nil }, Elsewhere: func() map[string]float64 { return nil },
		Stale: func() string { return p.stale },
		View:  func(k instance.Key) instance.View { return p.views[k.Address] },
	})
	return p
}

// pressure returns the pressure of prefill in a fleet with two instances and an adapter. It
// runs 60 ticks with these queues, and with these waiting tokens in other proxies.
func pressure(queues func(tick int) []instance.ListedQueue, elsewhere map[string]float64) float64 {
	var all []*instance.Instance
	for _, role := range instance.Roles() {
		all = append(all, &instance.Instance{
			Key: instance.Key{Role: role, Address: string(role) + ":1"}, Verified: true,
			Record: instance.Record{State: instance.Ready, Models: []string{"m", "adapter"}},
		})
	}
	snap, tick := instance.NewSnapshot(1, all), 0
	f := ratio.New(ratio.Options{
		Mode: config.AutoRolesOff, Targets: roles.Targets{TTFT: 2, TPOT: 0.05}, Snapshot: func() *instance.Snapshot { return snap },
		Load: func(instance.Key) (sched.Total, bool) { return sched.Total{}, true },
		Rates: func(string, string) estimate.Rates {
			line := estimate.Line{Fixed: 0.01, Each: 0.0001, Samples: 100}
			return estimate.Rates{Prefill: line, Transfer: line, Token: line, Output: 10, Uncached: 5000}
		},
		Queues:    func() []instance.ListedQueue { return queues(tick) },
		Elsewhere: func() map[string]float64 { return elsewhere },
		View:      func(instance.Key) instance.View { return "" },
	})
	for ; tick < 60; tick++ {
		f.Step(context.Background(), time.Unix(int64(tick), 0))
	}
	return f.Advice()[0].Pressure
}

// Waiting and refused requests for an adapter, or for instances with labels, count for the base model.
func TestQueueOfAdapter(t *testing.T) {
	t.Parallel()
	idle := pressure(func(int) []instance.ListedQueue { return nil }, nil)
	for name, queue := range map[string]func(tick int) instance.ListedQueue{
		"waiting": func(int) instance.ListedQueue {
			return instance.ListedQueue{Waiting: map[string]int{"default": 200}, Share: 1}
		},
		"refused": func(tick int) instance.ListedQueue { return instance.ListedQueue{Refused: int64(tick), Share: 1} },
	} {
		of := func(models ...string) float64 {
			return pressure(func(tick int) (out []instance.ListedQueue) {
				for _, model := range models {
					q := queue(tick)
					q.Model = model
					out = append(out, q)
				}
				return out
			}, nil)
		}
		model, adapter, labels, both, absent := of("m"), of("adapter"), of("m{tier=canary}"), of("adapter", "m"), of("absent")
		if model <= idle || adapter != model || labels != model || both <= model || absent != idle {
			t.Errorf("%s: pressure %v for the model, %v for the adapter, %v for labels, %v for both, %v for a model without instances; %v if idle",
				name, model, adapter, labels, both, absent, idle)
		}
	}
}

// All proxies compute the same pressure, wherever requests wait and whatever the shares are.
func TestQueuesOfOthers(t *testing.T) {
	t.Parallel()
	waiting := func(n int, share float64) func(int) []instance.ListedQueue {
		return func(int) []instance.ListedQueue {
			return []instance.ListedQueue{{Model: "m", Waiting: map[string]int{"batch": n}, Share: share}}
		}
	}
	tokens := func(n float64) map[string]float64 { return map[string]float64{"adapter": 5000 * n} }
	want := pressure(waiting(200, 1), nil)
	for name, is := range map[string]float64{
		"all here": pressure(waiting(200, 0.25), nil),
		"a part":   pressure(waiting(50, 0.9), tokens(150)),
		"none":     pressure(waiting(0, 0.5), tokens(200)),
		"no queue": pressure(func(int) []instance.ListedQueue { return nil }, tokens(200)),
	} {
		assert.Equal(t, want, is, "%s: pressure", name)
	}
}

// A recreated queue counts its refusals from 0, and one that is
// listed again has its former count: neither changes the pressure.
func TestQueue_Recreated(t *testing.T) {
	t.Parallel()
	after := func(refused int64, absent bool) float64 {
		return pressure(func(tick int) []instance.ListedQueue {
			q := instance.ListedQueue{Model: "m", Refused: int64(tick), Share: 1}
			if tick > 50 {
				q.Refused = refused
			}
			if absent && tick == 51 {
				return nil
			}
			return []instance.ListedQueue{q}
		}, nil)
	}
	want := after(50, false)
	if made, listed := after(0, false), after(50, true); made != want || listed != want {
		t.Errorf("pressure %v if it is made again, %v if it is listed again, want %v", made, listed, want)
	}
}

// run simulates the passing of seconds, in steps of five. A cancelled ctx simulates a missing etcd.
func (p *proxy) run(ctx context.Context, seconds int) {
	for range seconds / 5 {
		if snap, err := p.st.Reader.Snapshot(ctx); err == nil {
			p.snap = snap
		}
		p.now = p.now.Add(5 * time.Second)
		p.Step(ctx, p.now)
	}
}

// moves returns the number of changes with a result.
func (p *proxy) moves(result string) (n int64) {
	p.Moves(func(_ instance.Role, is string, count int64) {
		if is == result {
			n += count
		}
	})
	return n
}

// serving returns the number of prefill and decode instances in use.
func (p *proxy) serving() [2]int {
	p.t.Helper()
	snap, err := p.st.Reader.Snapshot(p.t.Context())
	require.NoError(p.t, err)
	return [2]int{len(snap.Usable(instance.Prefill)), len(snap.Usable(instance.Decode))}
}

// check compares the numbers of instances in use, of changes, and of failed changes.
func (p *proxy) check(prefill, decode int, moved, failed int64) {
	p.t.Helper()
	if got := p.serving(); got != [2]int{prefill, decode} || p.moves(ratio.Moved) != moved || p.moves(ratio.Failed) != failed {
		p.t.Fatalf("%v serve after %d changes, %d failed", got, p.moves(ratio.Moved), p.moves(ratio.Failed))
	}
}

// The last remaining engine, which serves in one role, gets the other role, too, and keeps both.
func TestLastEngine(t *testing.T) {
	t.Parallel()
	etcd := fleet(t, true)
	cli, l := etcd.Client(t), members.Layout(t)
	for _, address := range []string{"127.0.0.1:2", "127.0.0.1:3", "127.0.0.1:4"} {
		for _, k := range (instance.Key{Role: instance.Both, Address: address}).Each() {
			members.Del(t, cli, l.Instance(k))
		}
	}
	p := newProxy(t, etcd, config.AutoRolesOn, "a")
	p.run(t.Context(), 130)
	p.check(1, 1, 1, 0) // one engine in both roles
	p.run(t.Context(), 600)
	p.check(1, 1, 1, 0)
}

// Of two proxies that decide at the same moment, one makes the change. Both wait equally long after it.
func TestTwoProxies(t *testing.T) {
	t.Parallel()
	etcd := fleet(t, true)
	a, b := newProxy(t, etcd, config.AutoRolesOn, "a"), newProxy(t, etcd, config.AutoRolesOn, "b")
	run := func(seconds int) {
		for range seconds / 5 {
			var wg sync.WaitGroup
			for _, p := range []*proxy{a, b} {
				wg.Go(func() { p.run(t.Context(), 5) })
			}
			wg.Wait()
		}
	}
	run(120)
	require.Equal(t, [2]int{1, 3}, a.serving(), "after 120 s: the last change was less than 120 s ago")
	run(10)
	if got := a.serving(); got != [2]int{2, 2} || a.moves(ratio.Moved)+b.moves(ratio.Moved) != 1 {
		t.Fatalf("%v, %d and %d changes", got, a.moves(ratio.Moved), b.moves(ratio.Moved))
	}
	run(105)
	require.Equal(t, [2]int{2, 2}, a.serving(), "changed again too early")
	run(15)
	require.Equal(t, [2]int{3, 1}, a.serving())
	run(200)
	require.Equal(t, [2]int{3, 1}, a.serving(), "the last one of a role")
	log, err := a.st.Reader.AuditLog(t.Context(), 1)
	if err != nil || log[0].What != "role prefill" || log[0].Why == "" || log[0].Who != "a" && log[0].Who != "b" {
		t.Errorf("%+v, %v", log, err)
	}
	advice := a.Advice()
	if len(advice) != 2 || advice[0].Instances != 3 || advice[0].Pressure <= 1 || advice[0].Wanted <= 3 || advice[1].Role != instance.Decode {
		t.Errorf("%+v", advice)
	}
}

// A proxy without measurements moves an engine to a role whose last engine has left.
func TestEmptyRole(t *testing.T) {
	t.Parallel()
	etcd := fleet(t, true)
	p := newProxy(t, etcd, config.AutoRolesOn, "a")
	p.full, p.rates = false, estimate.Rates{}
	p.run(t.Context(), 200)
	p.check(1, 3, 0, 0) // no role is empty
	for _, k := range (instance.Key{Role: instance.Both, Address: "127.0.0.1:1"}).Each() {
		members.Del(t, etcd.Client(t), members.Layout(t).Instance(k))
	}
	p.run(t.Context(), 110)
	p.check(0, 3, 0, 0) // the engine may be about to start
	p.run(t.Context(), 400)
	p.check(1, 2, 1, 0)
}

// A refused change of one engine does not prevent that of the next one, and is tried again later.
func TestRefusedEngine(t *testing.T) {
	t.Parallel()
	etcd := fleet(t, true)
	for _, k := range (instance.Key{Role: instance.Both, Address: "127.0.0.1:2"}).Each() { // of the engine that is chosen first
		members.Put(t, etcd.Client(t), members.Layout(t).Instance(k), `{"models":["m","adapter"]}`)
	}
	p := newProxy(t, etcd, config.AutoRolesOn, "a")
	p.run(t.Context(), 130)
	p.check(1, 3, 0, 1)
	p.run(t.Context(), 120)
	p.check(2, 2, 1, 1)
	p.full = false
	p.run(t.Context(), 600)
	p.full = true
	p.run(t.Context(), 40)
	p.check(2, 2, 1, 2)
}

// An engine with weight 0, or with a time-limited weight, is not moved while it has that weight.
func TestWeightKeepsTheRole(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		k      instance.Key
		weight int
		limit  time.Duration
	}{{members.Prefill("127.0.0.1:2"), 0, 0}, {members.Decode("127.0.0.1:2"), 50, time.Hour}} {
		t.Run(fmt.Sprint(c.weight), func(t *testing.T) {
			t.Parallel()
			etcd := fleet(t, true)
			p := newProxy(t, etcd, config.AutoRolesOn, "a")
			_, err := p.st.Intents.SetWeight(t.Context(), c.k, &c.weight, store.IntentOptions{For: c.limit})
			require.NoError(t, err)
			p.run(t.Context(), 130) // it would be the first to move
			p.check(2, 2, 1, 0)
			if _, err := p.st.Intents.SetRole(t.Context(), "127.0.0.1:4", instance.Decode, store.IntentOptions{}); err != nil { // as an operator
				t.Fatal(err)
			}
			_, err = p.st.Intents.SetWeight(t.Context(), c.k, nil, store.IntentOptions{})
			require.NoError(t, err)
			p.run(t.Context(), 130)
			p.check(3, 1, 2, 0)
		})
	}
}

// An ejected or sleeping engine is not moved, although it has the fewest
// requests. It does not count as one that its role can spare, either.
func TestEjectedEngine_KeepsRole(t *testing.T) {
	t.Parallel()
	etcd := fleet(t, true)
	p := newProxy(t, etcd, config.AutoRolesOn, "a")
	check := func(prefill, decode float64, moved int64) {
		t.Helper()
		if a := p.Advice(); p.moves(ratio.Moved) != moved || p.moves(ratio.Failed) != 0 || a[0].Instances != prefill || a[1].Instances != decode {
			t.Fatalf("%d changes, %d failed; %+v", p.moves(ratio.Moved), p.moves(ratio.Failed), a)
		}
	}
	p.views = map[string]instance.View{"127.0.0.1:2": instance.Ejected, "127.0.0.1:3": instance.Sleeping}
	p.run(t.Context(), 130)
	check(1, 1, 0)
	p.views["127.0.0.1:3"] = ""
	p.run(t.Context(), 40)
	check(2, 1, 1)
	in, ok := p.snap.Lookup(instance.Key{Role: instance.Prefill, Address: "127.0.0.1:2"})
	require.True(t, ok && !in.Usable(), "%+v is usable", in)
	for _, address := range []string{"127.0.0.1:3", "127.0.0.1:4"} {
		p.views[address] = instance.Ejected
	}
	p.views["127.0.0.1:2"] = ""
	p.run(t.Context(), 130) // one of the two remaining engines is in each role
	check(1, 1, 1)
}

// The KV cache use is that of the engines that report it, whatever share of an engine a role has.
func TestKVUseOfEngineInBothRoles(t *testing.T) {
	t.Parallel()
	var all []*instance.Instance
	for _, k := range []instance.Key{{Role: instance.Prefill, Address: "a:1"}, {Role: instance.Decode, Address: "a:1"}, {Role: instance.Decode, Address: "b:1"}} {
		all = append(all, &instance.Instance{Key: k, Verified: true, Record: instance.Record{State: instance.Ready, Models: []string{"m"}}})
	}
	snap := instance.NewSnapshot(1, all)
	f := ratio.New(ratio.Options{
		Mode: config.AutoRolesOff, Targets: roles.Targets{TTFT: 2}, Snapshot: func() *instance.Snapshot { return snap },
		Load: func(k instance.Key) (sched.Total, bool) {
			if k.Address != "a:1" {
				return sched.Total{}, true
			}
			return sched.Total{Engine: &policy.Engine{All: policy.Rank{Usage: 0.8, Capacity: 1000}}}, true
		},
		Rates: func(string, string) estimate.Rates {
			line := estimate.Line{Fixed: 0.01, Each: 0.0001, Samples: 100}
			return estimate.Rates{Prefill: line, Transfer: line, Token: line, Output: 10, Uncached: 5000}
		},
		Queues: func() []instance.ListedQueue { return nil }, Elsewhere: func() map[string]float64 { return nil },
		View: func(instance.Key) instance.View { return "" },
	})
	for tick := range 60 {
		f.Step(t.Context(), time.Unix(int64(tick), 0))
	}
	got := f.Advice()[1].Pressure
	assert.True(t, got >= 0.79 && got <= 0.81, "pressure %v", got)
}

// Nothing changes while the load is normal, the state of the fleet is unknown, etcd is
// unavailable, or an operator has set the roles. In mode advise, nothing is written.
func TestNothingChanges(t *testing.T) {
	t.Parallel()
	etcd := fleet(t, true)
	p := newProxy(t, etcd, config.AutoRolesOn, "a")
	unchanged := func(what string) {
		t.Helper()
		got := p.serving()
		require.True(t, got == [2]int{1, 3} && p.moves(ratio.Moved) == 0, "%s: %v", what, got)
	}
	p.full = false
	p.run(t.Context(), 200)
	unchanged("fine")
	p.full, p.stale = true, "digests are old"
	p.run(t.Context(), 200)
	unchanged("stale")
	p.stale = ""
	p.run(t.Context(), 5)
	etcd.Kill()
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // calls fail at once
	p.run(ctx, 100)
	etcd.Restart()
	testkit.Eventually(t, time.Minute, func() error {
		_, err := p.st.Intents.LastMove(t.Context())
		return err
	})
	unchanged("without etcd")
	p.run(t.Context(), 25)
	unchanged("the pressure is known for 25 s")
	for _, id := range []string{"off", "on"} {
		members.Put(t, etcd.Client(t), members.Layout(t).Proxy(id), `{"v":1}`)
	}
	members.Put(t, etcd.Client(t), members.Layout(t).Load("on"), `{"v":1}`)
	p.run(t.Context(), 200)
	unchanged("another proxy publishes no digest")
	members.Del(t, etcd.Client(t), members.Layout(t).Proxy("off"))
	p.run(t.Context(), 30)
	unchanged("the pressure is known for 25 s")

	advises := newProxy(t, etcd, config.AutoRolesAdvise, "b")
	advises.run(t.Context(), 400)
	n := advises.moves(ratio.Advised)
	assert.True(t, n == 3, "advised %d times in 400 s", n)
	unchanged("advised")
	newProxy(t, etcd, config.AutoRolesOff, "c").run(t.Context(), 200)
	unchanged("off")

	operator := fleet(t, false)
	p = newProxy(t, operator, config.AutoRolesOn, "a")
	p.run(t.Context(), 400)
	unchanged("an operator's roles")
}
