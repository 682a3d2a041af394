package sched_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
	"github.com/pdmesh/pdmesh/sim/testkit/longform"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

func TestMain(m *testing.M) { leak.Main(m) }

type source struct {
	p   atomic.Pointer[instance.Snapshot]
	rev int64
}

func (s *source) Snapshot() *instance.Snapshot { return s.p.Load() }

func (s *source) set(list ...*instance.Instance) {
	s.rev++
	old := s.p.Swap(instance.NewSnapshot(s.rev, list))
	if old != nil {
		old.Supersede()
	}
}

type sick map[instance.Key]bool

func (s sick) Troubled() []instance.Key           { return slices.Collect(maps.Keys(s)) }
func (s sick) Available(k instance.Key) bool      { return !s[k] }
func (sick) Failing(instance.Key, string) bool    { return false }
func (sick) SilentFor(instance.Key) time.Duration { return 0 }
func (s sick) Unreachable(k instance.Key) bool    { return s[k] }
func (s sick) Share(instance.Key) float64         { return 1 }

func inst(role instance.Role, address string, change ...func(*instance.Instance)) *instance.Instance {
	in := &instance.Instance{
		Key: instance.Key{Role: role, Address: address}, Verified: true,
		Record: instance.Record{Models: []string{"m"}, State: instance.Ready, Connector: "plain"},
	}
	for _, f := range change {
		f(in)
	}
	return in
}

func build(health sched.Health, list ...*instance.Instance) (*sched.Scheduler, *source) {
	s := &source{}
	s.set(list...)
	if health == nil {
		health = sick{}
	}
	return sched.New(sched.Options{
		Source: s, Health: health, PairKey: members.PairKey,
	}), s
}

func decode(model string, tried ...instance.Key) sched.Request {
	return sched.Request{Role: instance.Decode, Model: model, Tried: tried}
}

func TestPick_EligibleInstances(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		change func(*instance.Instance)
		want   error
	}{
		{"ready", func(*instance.Instance) {}, nil},
		{"orphan", func(in *instance.Instance) { in.View = instance.Orphan }, nil},
		{"starting", func(in *instance.Instance) { in.Record.State = instance.Starting }, sched.ErrNone},
		{"draining", func(in *instance.Instance) { in.Record.State = instance.Draining }, sched.ErrNone},
		{"down", func(in *instance.Instance) { in.Record.State = instance.Down }, sched.ErrNone},
		{"unverified", func(in *instance.Instance) { in.Verified = false; in.View = instance.Unverified }, sched.ErrNone},
		{"rejected", func(in *instance.Instance) { in.View = instance.Rejected }, sched.ErrNone},
		{"pending", func(in *instance.Instance) { in.View = instance.Pending }, sched.ErrNone},
		{"cordoned", func(in *instance.Instance) { in.Intent = instance.Cordon }, sched.ErrNone},
		{"drained", func(in *instance.Instance) { in.Intent = instance.Drain }, sched.ErrNone},
		{"removed", func(in *instance.Instance) { in.Intent = instance.Removed }, sched.ErrNone},
		{"weight 0", func(in *instance.Instance) { in.Record.Weight = new(0) }, sched.ErrNone},
		{"slow, weight 0", func(in *instance.Instance) {
			in.Record.State, in.Record.Cause, in.Record.Weight = instance.Down, instance.CauseSlow, new(0)
		}, sched.ErrNone},
		{"no dialect", func(in *instance.Instance) { in.Record.Connector = "" }, sched.ErrNone},
		{"another model", func(in *instance.Instance) { in.Record.Models = []string{"x"} }, sched.ErrUnknownModel},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s, _ := build(nil, inst(instance.Decode, "a:1", tc.change))
			a, err := s.Pick(decode("m"))
			require.True(t, errors.Is(err, tc.want), "Pick: %v, want %v", err, tc.want)
			a.Done()
		})
	}
}

func TestUnknownModel_NeedsModelList(t *testing.T) {
	t.Parallel()
	s, src := build(nil)
	if _, err := s.Pick(decode("m")); !errors.Is(err, sched.ErrNone) || errors.Is(err, sched.ErrMembershipUnread) {
		t.Fatalf("empty fleet: %v", err)
	}
	src.p.Swap(instance.NewSnapshot(0, nil)).Supersede()
	if _, err := s.Pick(decode("m")); !errors.Is(err, sched.ErrNone) || !errors.Is(err, sched.ErrMembershipUnread) {
		t.Fatalf("before the first list: %v", err)
	}
	src.set(inst(instance.Prefill, "a:1"))
	if _, err := s.Pick(decode("m")); !errors.Is(err, sched.ErrNone) {
		t.Fatalf("the other role serves the model: %v", err)
	}
	if _, err := s.Pick(decode("x")); !errors.Is(err, sched.ErrUnknownModel) {
		t.Fatalf("no instance serves it: %v", err)
	}
}

// decodes returns n decode instances.
func decodes(n int) (out []*instance.Instance) {
	for i := range n {
		out = append(out, inst(instance.Decode, fmt.Sprintf("d:%04d", i)))
	}
	return out
}

// All instances are used in the end, however often the list is rebuilt.
func TestTurns_FleetChanges(t *testing.T) {
	t.Parallel()
	const n = 200
	fleet := decodes(n)
	s, source := build(nil, fleet...)
	got := map[string]bool{}
	for i := range 100 * n {
		a := pick(t, s, decode("m"))
		got[a.Instance.Address] = true
		a.Done()
		if i%100 == 0 { // another instance is removed
			removed := i / 100 * 37 % n
			source.set(slices.Delete(slices.Clone(fleet), removed, removed+1)...)
		}
	}
	assert.Equal(t, n, len(got), "%d of %d were used", len(got), n)
}

// In a large fleet, too, the requests of an ejected instance are spread over many others.
func TestEjectedShare_SpreadInLargeFleet(t *testing.T) {
	t.Parallel()
	longform.Test(t)
	const n = 1000
	share := func(h sched.Health) map[string]int {
		s, _ := build(h, decodes(n)...)
		got := map[string]int{}
		for range 32 * n {
			a := pick(t, s, decode("m"))
			got[a.Instance.Address]++
			a.Done()
		}
		return got
	}
	well := share(nil)
	got := share(sick{{Role: instance.Decode, Address: "d:0500"}: true})
	more := 0
	for addr, k := range got {
		if k > well[addr] {
			more++
		}
	}
	assert.True(t, got["d:0500"] == 0 && more >= well["d:0500"]/2,
		"the sick one got %d; its %d turns went to %d others", got["d:0500"], well["d:0500"], more)
}

// Long legs are spread over all instances of a large fleet: none has more than one leg above the minimum.
func TestLongLegsAreSpread(t *testing.T) {
	t.Parallel()
	const n = 500
	s, _ := build(nil, decodes(n)...)
	for picked := range 4 * n {
		if _, err := s.Pick(decode("m")); err != nil {
			t.Fatal(err)
		}
		if (picked+1)%n != 0 {
			continue
		}
		s.Loads.Each(func(k instance.Key, inFlight int64) {
			most := int64((picked+1)/n) + 1
			assert.LessOrEqual(t, inFlight, most, "%s has %d of %d", k.Address, inFlight, picked+1)
		})
	}
}

// Two proxies with the same fleet do not pick the same instances at the same time.
func TestProxies_DifferentFirstPicks(t *testing.T) {
	t.Parallel()
	first := map[string]bool{}
	for range 20 {
		src := &source{}
		src.set(decodes(1000)...)
		s := sched.New(sched.Options{Source: src, Health: sick{}, Options: policy.Options{Start: rand.Uint64()},
			PairKey: members.PairKey})
		a := pick(t, s, decode("m"))
		first[a.Instance.Address] = true
	}
	assert.GreaterOrEqual(t, len(first), 10, "20 proxies begin at %d places", len(first))
}

// lostMeanwhile is a health in which an instance is ejected during a
// pick: available at the first call, and ejected from then on.
type lostMeanwhile struct {
	sick
	key   instance.Key
	asked *atomic.Bool
}

func (f lostMeanwhile) Available(k instance.Key) bool {
	if k == f.key {
		return !f.asked.Swap(true)
	}
	return f.sick.Available(k)
}

func (f lostMeanwhile) Troubled() []instance.Key { return append(f.sick.Troubled(), f.key) }

func (lostMeanwhile) Unreachable(instance.Key) bool { return false }

// If the last available instance is ejected during a pick, the
// others may still be tried, as if most were ejected.
func TestPick_LastInstanceEjected(t *testing.T) {
	t.Parallel()
	for _, session := range []string{"", "s"} {
		out := instance.Key{Role: instance.Decode, Address: "d:1"}
		h := lostMeanwhile{sick{out: true}, instance.Key{Role: instance.Decode, Address: "d:2"}, new(atomic.Bool)}
		s, _ := build(h, inst(instance.Decode, "d:1"), inst(instance.Decode, "d:2"))
		r := decode("m")
		r.Session = session
		if a, err := s.Pick(r); err != nil {
			t.Errorf("session %q: %v, %v", session, a, err)
		}
	}
}

func TestAllEjected_StillPicked(t *testing.T) {
	t.Parallel()
	k := instance.Key{Role: instance.Decode, Address: "d:1"}
	s, _ := build(sick{k: true}, inst(instance.Decode, "d:1"))
	if a, err := s.Pick(decode("m")); err != nil || a.Instance.Key != k {
		t.Fatalf("Pick: %v, %v", a, err)
	}
	if _, err := s.Pick(decode("m", k)); !errors.Is(err, sched.ErrNone) {
		t.Fatalf("a tried instance was given again: %v", err)
	}
}

// softSick is a health whose ejected instances are reachable.
type softSick struct{ sick }

func (softSick) Unreachable(instance.Key) bool { return false }

// Ejected instances are used if they are more than half of the instances. Ranks do
// not count; instances that the request has tried, and its partner, do.
func TestMostEjected(t *testing.T) {
	t.Parallel()
	key := func(address string) instance.Key { return instance.Key{Role: instance.Decode, Address: address} }
	ranked := []*instance.Instance{inst(instance.Decode, "a:1", ranks(4)), inst(instance.Decode, "b:1"), inst(instance.Decode, "c:1")}
	four := slices.Concat(bothRoles("a:1"), bothRoles("b:1"), bothRoles("c:1"), bothRoles("d:1"))
	partner := &sched.Assignment{Instance: four[0], PairKey: connector.PairKey{Connector: "plain"}}
	for _, tc := range []struct {
		name    string
		list    []*instance.Instance
		ejected []string
		request sched.Request
		want    []string
	}{
		{"one of three, which has most ranks", ranked, []string{"a:1"}, sched.Request{}, []string{"b:1", "c:1"}},
		{"two of three, with few ranks", ranked, []string{"b:1", "c:1"}, sched.Request{}, []string{"a:1", "b:1", "c:1"}},
		{"a certain rank", ranked, []string{"a:1"}, sched.Request{Ranked: true, Rank: 1}, []string{"b:1", "c:1"}},
		{"two of four", four, []string{"c:1", "d:1"}, sched.Request{Partner: partner}, []string{"b:1"}},
		{"three of four", four, []string{"b:1", "c:1", "d:1"}, sched.Request{Partner: partner}, []string{"b:1", "c:1", "d:1"}},
		{"one other was tried", four, []string{"c:1", "d:1"}, sched.Request{Tried: []instance.Key{key("a:1")}}, []string{"b:1"}},
		{"all others were tried", four, []string{"c:1", "d:1"}, sched.Request{Tried: []instance.Key{key("a:1"), key("b:1")}}, []string{"c:1", "d:1"}},
		{"a rank of the other was tried", four, []string{"c:1", "d:1"}, sched.Request{TriedRanks: []sched.Target{{Key: key("a:1")}}}, []string{"b:1"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			out := sick{}
			for _, address := range tc.ejected {
				out[key(address)] = true
			}
			s, _ := build(softSick{out}, tc.list...)
			tc.request.Role, tc.request.Model = instance.Decode, "m"
			got := map[string]bool{}
			for range 100 {
				a := pick(t, s, tc.request)
				got[a.Instance.Address] = true
				a.Done()
			}
			assert.Equal(t, tc.want, slices.Sorted(maps.Keys(got)), "picked")
		})
	}
}

func TestPairs_SameConnector(t *testing.T) {
	t.Parallel()
	nixl := func(in *instance.Instance) { in.Record.Connector = "nixl" }
	s, src := build(nil, inst(instance.Prefill, "p:1"), inst(instance.Prefill, "p:2", nixl), inst(instance.Decode, "d:1", nixl))
	for range 8 {
		p, err := s.Pick(sched.Request{Role: instance.Prefill, Model: "m"})
		require.True(t, err == nil && p.Connector == "nixl", "a prefill that no decode can follow: %v, %v", p, err)
		d, err := s.Pick(sched.Request{Role: instance.Decode, Model: "m", Partner: p})
		require.True(t, err == nil && d.Connector == "nixl", "Pick: %v, %v", d, err)
	}
	src.set(inst(instance.Prefill, "p:1"), inst(instance.Decode, "d:1", nixl))
	if _, err := s.Pick(sched.Request{Role: instance.Prefill, Model: "m"}); !errors.Is(err, sched.ErrNone) {
		t.Fatalf("no pair exists: %v", err)
	}
	if _, err := s.Pick(sched.Request{Role: instance.Prefill, Model: "m", Unpaired: true}); err != nil {
		t.Fatalf("alone: %v", err)
	}
}

func TestInFlight_OutlivesSnapshot(t *testing.T) {
	t.Parallel()
	s, src := build(nil, inst(instance.Decode, "d:1"))
	k := instance.Key{Role: instance.Decode, Address: "d:1"}
	a := pick(t, s, decode("m"))
	src.set() // the instance is removed while the request runs
	if _, err := s.Pick(decode("m")); err == nil {
		t.Fatal("picked one that left")
	}
	n := s.InFlight(k)
	require.True(t, n == 1, "in flight %d while the request runs", n)
	src.set(inst(instance.Decode, "d:1"))
	b := pick(t, s, decode("m"))
	require.EqualValues(t, 2, s.InFlight(k), "in flight")
	a.Done()
	a.Done()
	b.Done()
	n = s.InFlight(k)
	require.True(t, n == 0, "in flight %d after the end", n)
	var none *sched.Assignment
	none.Done() // a leg that was never picked can be ended, too
}

func BenchmarkPick(b *testing.B) {
	for _, n := range []int{10, 100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var list []*instance.Instance
			for i := range n {
				list = append(list, inst(instance.Decode, fmt.Sprintf("d:%d", i+1)))
			}
			s, _ := build(nil, list...)
			b.ReportAllocs()
			for b.Loop() {
				pick(b, s, decode("m")).Done()
			}
		})
	}
}

// asked is a health that calls a function in each pick.
type asked struct {
	sick
	pick func()
}

func (a asked) Troubled() []instance.Key {
	a.pick()
	return a.sick.Troubled()
}

// While another request builds the index, a pick uses the old
// one, but must not return an engine that has restarted since.
func TestPick_DuringIndexBuild(t *testing.T) {
	t.Parallel()
	named := func(id string) *instance.Instance {
		return inst(instance.Decode, "a:1", func(in *instance.Instance) { in.Record.ID = id })
	}
	src := &source{}
	src.set(named("old"))
	building, picking, built := make(chan struct{}), make(chan struct{}), make(chan struct{})
	begun, picked := sync.OnceFunc(func() { close(building) }), sync.OnceFunc(func() { close(picking) })
	s := sched.New(sched.Options{
		Source: src,
		Health: asked{sick{}, func() {
			select {
			case <-building:
				picked()
			default:
			}
		}},
		PairKey: func(in *instance.Instance) connector.PairKey {
			if in.Record.ID == "new" {
				begun()
				<-built
			}
			return members.PairKey(in)
		},
	})
	pick := func() string {
		a, err := s.Pick(decode("m"))
		if err != nil {
			return err.Error()
		}
		defer a.Done()
		return a.Instance.Record.ID
	}
	require.Equal(t, "old", pick(), "picked")
	src.set(named("new"))
	got := make(chan string, 2)
	go func() { got <- pick() }()
	<-building
	go func() { got <- pick() }()
	<-picking
	close(built)
	for range 2 {
		assert.Equal(t, "new", <-got, "picked")
	}
}

// The publisher prepares a snapshot: the first request after that builds nothing and picks from it.
func TestPreparedSnapshot_NoBuildOnPick(t *testing.T) {
	t.Parallel()
	src := &source{}
	src.set(inst(instance.Decode, "a:1"))
	var resolved atomic.Int64
	s := sched.New(sched.Options{Source: src, Health: sick{}, PairKey: func(in *instance.Instance) connector.PairKey {
		resolved.Add(1)
		return members.PairKey(in)
	}})
	if _, err := s.Pick(decode("m")); err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		snap := instance.NewSnapshot(int64(i+2), []*instance.Instance{inst(instance.Decode, fmt.Sprintf("b%d:1", i))})
		s.Prepare(snap)
		before := resolved.Load()
		if a, err := s.Pick(decode("m")); err != nil || a.Revision != int64(i+1) {
			t.Fatalf("picked %+v, %v from a snapshot that is not out yet", a, err)
		}
		src.p.Store(snap)
		if i%2 == 0 { // no pick uses every second snapshot
			if a, err := s.Pick(decode("m")); err != nil || a.Revision != snap.Revision {
				t.Fatalf("picked %+v, %v, want revision %d", a, err, snap.Revision)
			}
		}
		n := resolved.Load() - before
		assert.True(t, n == 0, "round %d: a pick resolved %d instances", i, n)
	}
}
