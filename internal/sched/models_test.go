package sched_test

import (
	"fmt"
	"testing"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
)

func serving(models ...string) func(*instance.Instance) {
	return func(in *instance.Instance) { in.Record.Models = models }
}

// With several models in one fleet load is compared among the instances that serve the
// model, whatever those of other models have to do.
func TestLoadIsAmongThoseOfTheModel(t *testing.T) {
	t.Parallel()
	var list []*instance.Instance
	for i := range 3 {
		list = append(list, inst(instance.Decode, fmt.Sprintf("a:%d", i), serving("a")), inst(instance.Decode, fmt.Sprintf("b:%d", i), serving("b")))
	}
	pick := func(s *sched.Scheduler, model, session string) *sched.Assignment {
		t.Helper()
		a, err := s.Pick(sched.Request{Role: instance.Decode, Model: model, Session: session})
		if err != nil || a.Instance.Address[:1] != model {
			t.Fatalf("model %s: %v, %v", model, a, err)
		}
		return a
	}
	// Idle instances of b make no instance of a overloaded: without them 12 are the mean.
	s, _ := chosenBy(t, policy.Session, nil, false, list...)
	others := map[string]sched.Counts{}
	for i := range 3 {
		others[fmt.Sprintf("a:%d", i)] = sched.Counts{InFlight: 12}
	}
	home := pick(s, "a", "s")
	home.Done()
	s.Loads.SetOthers(others)
	if a := pick(s, "a", "s"); a.Instance != home.Instance || a.Elsewhere != "" {
		t.Errorf("all of a have as much, and the session left %s for %s", home.Instance.Key, a.Instance.Key)
	} else {
		a.Done()
	}
	// Busy instances of b make no instance of a look idle.
	others = map[string]sched.Counts{home.Instance.Address: {InFlight: 12}}
	for i := range 3 {
		others[fmt.Sprintf("b:%d", i)] = sched.Counts{InFlight: 500}
	}
	s.Loads.SetOthers(others)
	if a := pick(s, "a", "s"); a.Instance == home.Instance {
		t.Error("it alone of a has something to do, and the session stayed")
	}
	// The load of an instance that serves both counts for both.
	both := inst(instance.Decode, "x:1", serving("x", "y"))
	s, _ = chosenBy(t, "least_loaded", nil, false, both, inst(instance.Decode, "y:1", serving("y")))
	for range 3 {
		pick(s, "x", "")
	}
	for range 3 {
		if a := pick(s, "y", ""); a.Instance == both {
			t.Error("y went to the instance that has the requests of x")
		}
	}
}

// Zones, too, are compared among the instances of the model.
func TestZoneIsAmongThoseOfTheModel(t *testing.T) {
	t.Parallel()
	in := func(address, zone, model string) *instance.Instance {
		return inst(instance.Decode, address, labelled(zone), serving(model))
	}
	s := inZone(t, "z", "least_loaded", nil, in("a:1", "z", "a"), in("a:2", "o", "a"), in("a:3", "o", "a"), in("b:1", "o", "b"), in("b:2", "o", "b"))
	if a, err := s.Pick(decode("b")); err != nil || a.Elsewhere != "zone_none" {
		t.Errorf("nobody of b is in the zone: %v, %v", a, err)
	}
	s.Loads.SetOthers(map[string]sched.Counts{"a:1": {InFlight: 10}, "a:2": {InFlight: 6}, "a:3": {InFlight: 6}})
	if a, err := s.Pick(decode("a")); err != nil || a.Instance.Address != "a:1" {
		t.Errorf("%v, %v: those of b, which are idle, were counted", a, err)
	}
}
