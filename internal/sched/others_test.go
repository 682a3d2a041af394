package sched_test

import (
	"testing"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
)

// What other proxies have in flight counts like this proxy's own, until SetOthers says
// otherwise.
func TestOthersWeighInPicks(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"least_loaded", "power_of_two", policy.TokenWeighted} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _ := chosenBy(t, name, nil, false, inst(instance.Decode, "d:1"), inst(instance.Decode, "d:2"))
			picks := func() map[string]int {
				got := map[string]int{}
				for range 100 {
					a, err := s.Pick(decode("m"))
					if err != nil {
						t.Fatal(err)
					}
					got[a.Instance.Address]++
					a.Done()
				}
				return got
			}
			picks()
			s.Loads.SetOthers(map[string]sched.Counts{"d:1": {InFlight: 3, Held: 900}, "d:2": {InFlight: 0.5}})
			if got := picks(); got["d:2"] != 100 {
				t.Errorf("others have more on d:1: %v", got)
			}
			s.Loads.SetOthers(map[string]sched.Counts{"d:1": {InFlight: 3, Held: 900}, "d:2": {InFlight: 4, Held: 2000}})
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
