package sched_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
)

func engineReport(ranks ...policy.Rank) *policy.Engine {
	e := &policy.Engine{Ranks: ranks}
	for _, r := range ranks {
		e.All.Capacity += r.Capacity
		e.All.Usage += r.Usage / float64(len(ranks))
		e.All.Waiting += r.Waiting
	}
	return e
}

// No policy picks a decode instance whose KV cache is full while
// another one has space; if all are full, requests wait there.
func TestFullKVCache_Skipped(t *testing.T) {
	t.Parallel()
	eachPolicy(t, func(t *testing.T, name string) {
		full, half := engineReport(policy.Rank{Usage: 0.6, Waiting: 3, Starved: 3}), engineReport(policy.Rank{Starved: 1}, policy.Rank{Usage: 0.5})
		s, src := chosenBy(t, name, nil, false, inst(instance.Decode, "d:1"), inst(instance.Decode, "d:2"), inst(instance.Prefill, "p:1"))
		of := func(role instance.Role) map[string]int {
			got := map[string]int{}
			for range 40 {
				a := pick(t, s, sched.Request{Role: role, Model: "m", Unpaired: true, Session: "s"})
				got[a.Instance.Address]++
				a.Done()
			}
			return got
		}
		d1, d2, p1 := instance.Key{Role: instance.Decode, Address: "d:1"}, instance.Key{Role: instance.Decode, Address: "d:2"}, instance.Key{Role: instance.Prefill, Address: "p:1"}
		of(instance.Decode)
		s.Loads.SetEngine(d1, full)
		s.Loads.SetEngine(d2, half)
		s.Loads.SetEngine(p1, full)
		if got := of(instance.Decode); got["d:2"] != 40 {
			t.Errorf("one is full: %v", got)
		}
		if got := of(instance.Prefill); got["p:1"] != 40 {
			t.Errorf("prefill: %v", got)
		}
		s.Loads.SetEngine(d2, engineReport(policy.Rank{Usage: 0.97, Waiting: 1}))
		s.Loads.SetEngine(d1, half)
		if got := of(instance.Decode); got["d:1"] != 40 {
			t.Errorf("the other one is, by its usage: %v", got)
		}
		s.Loads.SetEngine(d1, full)
		of(instance.Decode) // all are full, and no request is refused
		s.Loads.SetEngine(d1, nil)
		if got := of(instance.Decode); got["d:1"] != 40 {
			t.Errorf("what it said is too old: %v", got)
		}
		src.set(inst(instance.Decode, "d:1"))
		of(instance.Decode)
		of(instance.Decode)
		s.Loads.SetEngine(d2, full)
		s.Loads.SetEngine(d2, nil)
		assert.Len(t, s.Loads.Full(), 0, "full, although they have left")
	})
}

// The latest report of an engine in both roles counts, whichever of its instances it was read for.
func TestFull_EngineInBothRoles(t *testing.T) {
	t.Parallel()
	s, src := build(nil, bothRoles("x:1")...)
	pick(t, s, sched.Request{Role: instance.Decode, Model: "m"}).Done()
	p, d := instance.Key{Role: instance.Prefill, Address: "x:1"}, instance.Key{Role: instance.Decode, Address: "x:1"}
	full := engineReport(policy.Rank{Starved: 1})
	for _, leaves := range []bool{false, true} {
		s.Loads.SetEngine(d, full)
		assert.Equal(t, []instance.Key{d}, s.Loads.Full())
		if leaves {
			src.set()
			if _, err := s.Pick(sched.Request{Role: instance.Decode}); err == nil {
				t.Error("an instance that has left was picked")
			}
		}
		s.Loads.SetEngine(p, nil)
		assert.Len(t, s.Loads.Full(), 0, "left %t: full", leaves)
	}
	src.set(inst(instance.Prefill, "x:1"))
	pick(t, s, sched.Request{Role: instance.Prefill, Unpaired: true}).Done()
	s.Loads.SetEngine(p, full)
	assert.Len(t, s.Loads.Full(), 0, "full, although it is no decode instance")
}

// The size of the KV cache remains known when the engine's report is too old.
func TestCapacity(t *testing.T) {
	t.Parallel()
	s, _ := chosenBy(t, "random", nil, false, inst(instance.Decode, "d:1"))
	if _, err := s.Pick(sched.Request{Role: instance.Decode, Model: "m"}); err != nil {
		t.Fatal(err)
	}
	k := instance.Key{Role: instance.Decode, Address: "d:1"}
	s.Loads.SetEngine(k, engineReport(policy.Rank{Capacity: 1600}, policy.Rank{Capacity: 800}))
	s.Loads.SetEngine(k, nil)
	if l := s.LoadOf(k.Address); l.Capacity.Load() != 2400 || l.Engine.Load() != nil {
		t.Errorf("%g tokens, %v", l.Capacity.Load(), l.Engine.Load())
	}
	if _, ok := s.Loads.Total(k); !ok {
		t.Error("it is not known")
	}
	s.Loads.SetEngine(instance.Key{Role: instance.Decode, Address: "d:9"}, engineReport(policy.Rank{Starved: 1}))
	if _, ok := s.Loads.Total(instance.Key{}); ok || len(s.Loads.Full()) != 0 {
		t.Error("one that is not there is known")
	}
}
