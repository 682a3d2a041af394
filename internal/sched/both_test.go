package sched_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

// bothRoles returns the two instances of an engine in both roles.
func bothRoles(address string, change ...func(*instance.Instance)) []*instance.Instance {
	return []*instance.Instance{inst(instance.Prefill, address, change...), inst(instance.Decode, address, change...)}
}

// bothPicks returns the counts of picks of engines in both roles.
func bothPicks(s *sched.Scheduler) map[string]uint64 {
	out := map[string]uint64{}
	s.Tally.Both.Each(func(role instance.Role, reason string, n uint64) {
		if n > 0 {
			out[string(role)+" "+reason] = n
		}
	})
	return out
}

func pick(tb testing.TB, s *sched.Scheduler, r sched.Request) *sched.Assignment {
	tb.Helper()
	a, err := s.Pick(r)
	require.NoError(tb, err)
	return a
}

// The load of an engine in one role counts in the other role, too: a
// busy prefill instance is not picked for the next decode.
func TestBothRoles_SharedLoad(t *testing.T) {
	t.Parallel()
	src := &source{}
	src.set(append(bothRoles("x:1"), inst(instance.Decode, "d:1"))...)
	least := policyNamed(t, "least_loaded")
	s := sched.New(sched.Options{
		Source: src, Health: sick{}, PairKey: members.PairKey,
		Policies: map[instance.Role]policy.Kind{instance.Prefill: least, instance.Decode: least},
	})
	var held []*sched.Assignment
	for range 8 {
		held = append(held, pick(t, s, sched.Request{Role: instance.Prefill, Model: "m"}))
	}
	for _, k := range []instance.Key{{Role: instance.Prefill, Address: "x:1"}, {Role: instance.Decode, Address: "x:1"}} {
		n := s.InFlight(k)
		assert.True(t, n == 8, "%s has %d in flight", k, n)
	}
	for range 8 {
		a := pick(t, s, sched.Request{Role: instance.Decode, Model: "m"})
		if held = append(held, a); a.Instance.Address != "d:1" {
			t.Errorf("a decode went to the engine that is busy with prefills")
		}
	}
	held[0].NoteProgress()
	if p, d := s.Loads.Progress(instance.Key{Role: instance.Prefill, Address: "x:1"}), s.Loads.Progress(instance.Key{Role: instance.Decode, Address: "x:1"}); p != 1 || d != 1 {
		t.Errorf("progress %d and %d", p, d)
	}
	for _, a := range held {
		a.Done()
	}
	assert.EqualValues(t, 0, s.InFlight(instance.Key{Role: instance.Decode, Address: "x:1"}), "are left")
}

// An engine is not paired with itself while there is another one.
func TestPair_NotWithItself(t *testing.T) {
	t.Parallel()
	s, _ := build(nil, append(bothRoles("x:1"), bothRoles("y:1")...)...)
	for i := range 20 {
		p := pick(t, s, sched.Request{Role: instance.Prefill, Model: "m"})
		d := pick(t, s, sched.Request{Role: instance.Decode, Model: "m", Partner: p})
		require.NotEqual(t, d.Instance.Address, p.Instance.Address,
			"pick %d: %s is paired with itself", i, p.Instance.Address)
		p.Done()
		d.Done()
	}
	assert.Equal(t, "map[decode no_other:20 prefill no_other:20]", fmt.Sprint(bothPicks(s)), "counted")
}

// The engine serves both legs if no other one is reachable.
func TestPair_WithItselfAsLastResort(t *testing.T) {
	t.Parallel()
	out := sick{}
	s, src := build(out, append(bothRoles("x:1"), bothRoles("y:1")...)...)
	p := pick(t, s, sched.Request{Role: instance.Prefill, Model: "m"})
	other := "x:1"
	if p.Instance.Address == other {
		other = "y:1"
	}
	out[instance.Key{Role: instance.Decode, Address: other}] = true
	if d := pick(t, s, sched.Request{Role: instance.Decode, Model: "m", Partner: p}); d.Instance.Address != p.Instance.Address {
		t.Errorf("a leg goes to %s, which is unreachable", d.Instance.Address)
	}
	// An instance that was tried does not count as another one.
	delete(out, instance.Key{Role: instance.Decode, Address: other})
	tried := []instance.Key{{Role: instance.Decode, Address: other}}
	d := pick(t, s, sched.Request{Role: instance.Decode, Model: "m", Partner: p, Tried: tried})
	assert.Equal(t, p.Instance.Address, d.Instance.Address, "a leg goes to %s, which was tried", d.Instance.Address)
	// Without another instance, it is not picked for prefill: no instance could take its KV transfer.
	src.set(bothRoles("x:1")...)
	if _, err := s.Pick(sched.Request{Role: instance.Prefill, Model: "m"}); !errors.Is(err, sched.ErrSelf) || !errors.Is(err, sched.ErrNone) {
		t.Errorf("alone: %v", err)
	}
	pick(t, s, sched.Request{Role: instance.Prefill, Model: "m", Unpaired: true})
	pick(t, s, sched.Request{Role: instance.Decode, Model: "m"})
}

// A change of an engine in one role changes the lists of the other role, too.
func TestBothRoles_MembershipChange(t *testing.T) {
	t.Parallel()
	src := &source{}
	src.set()
	s := sched.New(sched.Options{
		Source: src, Health: sick{}, PairKey: func(in *instance.Instance) connector.PairKey {
			return connector.PairKey{Connector: in.Record.Connector, Build: "v" + in.Record.Version}
		},
	})
	prefill := sched.Request{Role: instance.Prefill, Model: "m"}
	x := bothRoles("x:1")
	other := func(change func(*instance.Instance)) *instance.Instance { return inst(instance.Decode, "x:1", change) }
	for _, step := range []struct {
		name string
		all  []*instance.Instance
		want error
	}{
		{"alone", x, sched.ErrSelf},
		{"with a decode instance", append([]*instance.Instance{inst(instance.Decode, "d:1")}, x...), nil},
		{"alone again", x, sched.ErrSelf},
		{"with another one", append(bothRoles("y:1"), x...), nil},
		{"one role only", x[:1], sched.ErrConnectors},
		{"the decode instance serves another model", append([]*instance.Instance{inst(instance.Decode, "d:1", func(in *instance.Instance) { in.Record.Models = []string{"n"} })}, x...), sched.ErrSelf},
		{"so does one of another version", append([]*instance.Instance{inst(instance.Decode, "d:1", func(in *instance.Instance) { in.Record.Models, in.Record.Version = []string{"n"}, "2" })}, x...), sched.ErrSelf},
		{"its decode is cordoned, another is there", []*instance.Instance{x[0], other(func(in *instance.Instance) { in.Intent = instance.Cordon }), inst(instance.Decode, "d:1")}, nil},
		{"the other speaks another dialect", append([]*instance.Instance{inst(instance.Decode, "d:1", func(in *instance.Instance) { in.Record.Connector = "nixl" })}, x...), sched.ErrConnectors},
	} {
		src.set(step.all...)
		a, err := s.Pick(prefill)
		if a.Done(); step.want == nil && err != nil || step.want != nil && !errors.Is(err, sched.ErrNone) {
			t.Errorf("%s: %v", step.name, err)
		}
		assert.False(t, errors.Is(step.want, sched.ErrSelf) && !errors.Is(err, sched.ErrSelf),
			"%s: %v, want %v", step.name, err, step.want)
	}
}

// Picks of an engine in both roles are counted by whether the role had another instance.
func TestBothRoles_PicksByReason(t *testing.T) {
	t.Parallel()
	s, src := build(nil, append(bothRoles("x:1"), inst(instance.Prefill, "p:1"), inst(instance.Decode, "d:1"))...)
	for _, role := range instance.Roles() {
		for range 10 {
			pick(t, s, sched.Request{Role: role, Model: "m", Unpaired: true})
		}
	}
	got := bothPicks(s)
	assert.True(t, got["prefill chosen"] != 0 && got["decode chosen"] != 0 && got["prefill no_other"] == 0,
		"with others: %v", got)
	src.set(append(bothRoles("x:1"), inst(instance.Decode, "d:1"))...)
	pick(t, s, sched.Request{Role: instance.Prefill, Model: "m"})
	src.set(append(bothRoles("x:1"), inst(instance.Prefill, "p:1"))...)
	tried := []instance.Key{{Role: instance.Prefill, Address: "x:1"}}
	p := pick(t, s, sched.Request{Role: instance.Prefill, Model: "m", Tried: tried})
	before := bothPicks(s)["decode no_other"]
	pick(t, s, sched.Request{Role: instance.Decode, Model: "m", Partner: p})
	if got = bothPicks(s); got["prefill no_other"] != 1 || got["decode no_other"] != before+1 {
		t.Errorf("without others: %v", got)
	}
}
