package sched_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
)

// Legs of other proxies count like this proxy's, until the next SetOthers.
func TestSetOthers_CountsInPicks(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"least_loaded", "power_of_two", policy.TokenWeighted} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _ := chosenBy(t, name, nil, false, inst(instance.Decode, "d:1"), inst(instance.Decode, "d:2"))
			picks := func() map[string]int {
				got := map[string]int{}
				for range 100 {
					a := pick(t, s, decode("m"))
					got[a.Instance.Address]++
					a.Done()
				}
				return got
			}
			picks()
			s.Loads.SetOthers(map[string]instance.OthersLoad{"d:1": {InFlight: 3, Held: 900}, "d:2": {InFlight: 0.5}})
			if got := picks(); got["d:2"] != 100 {
				t.Errorf("others have more on d:1: %v", got)
			}
			s.Loads.SetOthers(map[string]instance.OthersLoad{"d:1": {InFlight: 3, Held: 900}, "d:2": {InFlight: 4, Held: 2000}})
			if got := picks(); got["d:1"] != 100 {
				t.Errorf("others have more on d:2: %v", got)
			}
			s.Loads.SetOthers(nil)
			if got := picks(); got["d:1"] < 25 || got["d:2"] < 25 {
				t.Errorf("others have nothing: %v", got)
			}
		})
	}
}

// The load of other proxies is divided by the current number of
// an engine's ranks, also after a restart with fewer.
func TestSetOthers_AfterFewerRanks(t *testing.T) {
	t.Parallel()
	s, src := build(nil, inst(instance.Decode, "d:1", ranks(8)))
	others := func(want float64) {
		t.Helper()
		s.Pick(decode("m")) // builds the index
		s.Loads.SetOthers(map[string]instance.OthersLoad{"d:1": {InFlight: 8}})
		assert.Equal(t, want, s.LoadOf("d:1").Others.InFlight.Load(), "on the first rank")
		if total, _ := s.Loads.Total(instance.Key{Role: instance.Decode, Address: "d:1"}); total.Others != 8 {
			t.Errorf("%v on all ranks", total.Others)
		}
	}
	others(1)
	src.set(inst(instance.Decode, "d:1", ranks(2)))
	others(4)
	src.set(inst(instance.Decode, "d:1"))
	others(8)
	src.set(inst(instance.Decode, "d:1", ranks(8)))
	others(1)
}
