package sched_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/kvcache/indexmem"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

func serving(models ...string) func(*instance.Instance) {
	return func(in *instance.Instance) { in.Record.Models = models }
}

// In a fleet with several models, load is compared among the instances that serve the model only.
func TestLoad_ComparedPerModel(t *testing.T) {
	t.Parallel()
	var list []*instance.Instance
	for i := range 3 {
		list = append(list, inst(instance.Decode, fmt.Sprintf("a:%d", i), serving("a")), inst(instance.Decode, fmt.Sprintf("b:%d", i), serving("b")))
	}
	pick := func(s *sched.Scheduler, model, session string) *sched.Assignment {
		t.Helper()
		a, err := s.Pick(sched.Request{Role: instance.Decode, Model: model, Session: session})
		require.True(t, err == nil && a.Instance.Address[:1] == model, "model %s: %v, %v", model, a, err)
		return a
	}
	// Idle instances of b do not make an instance of a overloaded: among those of a, the mean is 12.
	s, _ := chosenBy(t, policy.Session, nil, false, list...)
	others := map[string]instance.OthersLoad{}
	for i := range 3 {
		others[fmt.Sprintf("a:%d", i)] = instance.OthersLoad{InFlight: 12}
	}
	home := pick(s, "a", "s")
	home.Done()
	s.Loads.SetOthers(others)
	if a := pick(s, "a", "s"); a.Instance != home.Instance || a.Elsewhere != "" {
		t.Errorf("all of a have as much, and the session left %s for %s", home.Instance.Key, a.Instance.Key)
	} else {
		a.Done()
	}
	// Busy instances of b do not make an instance of a look idle.
	others = map[string]instance.OthersLoad{home.Instance.Address: {InFlight: 12}}
	for i := range 3 {
		others[fmt.Sprintf("b:%d", i)] = instance.OthersLoad{InFlight: 500}
	}
	s.Loads.SetOthers(others)
	if a := pick(s, "a", "s"); a.Instance == home.Instance {
		t.Error("it alone of a has something to do, and the session stayed")
	}
	// The load of an instance that serves both models counts for both.
	both := inst(instance.Decode, "x:1", serving("x", "y"))
	s, _ = chosenBy(t, "least_loaded", nil, false, both, inst(instance.Decode, "y:1", serving("y")))
	for range 3 {
		pick(s, "x", "")
	}
	for range 3 {
		a := pick(s, "y", "")
		assert.True(t, a.Instance != both, "y went to the instance that has the requests of x")
	}
}

// Zones, too, are compared among the instances of the model only.
func TestZone_ComparedPerModel(t *testing.T) {
	t.Parallel()
	in := func(address, zone, model string) *instance.Instance {
		return inst(instance.Decode, address, labelled(zone), serving(model))
	}
	s := inZone(t, "z", "least_loaded", nil, in("a:1", "z", "a"), in("a:2", "o", "a"), in("a:3", "o", "a"), in("b:1", "o", "b"), in("b:2", "o", "b"))
	if a, err := s.Pick(decode("b")); err != nil || a.Elsewhere != "zone_none" {
		t.Errorf("no instance of b is in the zone: %v, %v", a, err)
	}
	s.Loads.SetOthers(map[string]instance.OthersLoad{"a:1": {InFlight: 10}, "a:2": {InFlight: 6}, "a:3": {InFlight: 6}})
	if a, err := s.Pick(decode("a")); err != nil || a.Instance.Address != "a:1" {
		t.Errorf("%v, %v: those of b, which are idle, were counted", a, err)
	}
}

// A model that only instances of one role list is known. Its requests are
// not sent to prefill, because no decode instance could use the result.
func TestModelOfOneRole(t *testing.T) {
	t.Parallel()
	prefill := func(model string) sched.Request {
		return sched.Request{Role: instance.Prefill, Model: model}
	}
	s, src := build(nil, inst(instance.Prefill, "p:1", serving("m", "p", "m")), inst(instance.Decode, "d:1", serving("m", "d")))
	for name, tc := range map[string]struct {
		request sched.Request
		want    error
	}{
		"prefill of both": {prefill("m"), nil}, "decode of both": {decode("m"), nil}, "decode of decode": {decode("d"), nil},
		"prefill of decode": {prefill("d"), sched.ErrModelAbsent}, "prefill of prefill": {prefill("p"), sched.ErrModelAbsent}, "decode of prefill": {decode("p"), sched.ErrModelAbsent},
		"prefill of none": {prefill("x"), sched.ErrUnknownModel}, "decode of none": {decode("x"), sched.ErrUnknownModel},
	} {
		if a, err := s.Pick(tc.request); !errors.Is(err, tc.want) || (err == nil) != (tc.want == nil) {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		} else if a != nil {
			a.Done()
		}
	}
	for model, want := range map[string]bool{"m": true, "d": true, "p": false, "x": false} {
		if s.Serves(model) != want {
			t.Errorf("Serves(%s) is %v", model, !want)
		}
	}
	assert.Equal(t, []string{"m", "p", "d"}, s.Models(), "models")
	src.set(inst(instance.Prefill, "p:1", serving("m", "late")), inst(instance.Decode, "d:1", serving("late", "m")))
	got := s.Models()
	assert.True(t, s.Serves("late") && !s.Serves("d") && slices.Equal(got, []string{"m", "late"}), "models %q", got)
	if _, err := s.Pick(decode("p")); !errors.Is(err, sched.ErrUnknownModel) {
		t.Errorf("a model that is no longer listed: %v", err)
	}
}

// Models of another fleet's instances are unknown until the instances belong to this fleet.
func TestModels_OfAnotherFleet(t *testing.T) {
	t.Parallel()
	s, src := build(nil)
	for i, elsewhere := range []bool{true, false, true, false} {
		src.set(inst(instance.Decode, "a:1", serving("m")), inst(instance.Decode, "b:1", serving("x"), func(in *instance.Instance) {
			if elsewhere {
				in.View = instance.Elsewhere
			}
		}))
		want := []string{"m", "x"}
		if elsewhere {
			want = want[:1]
		}
		_, err := s.Pick(decode("x"))
		if got := s.Models(); s.Lists("x") == elsewhere || errors.Is(err, sched.ErrUnknownModel) != elsewhere || !slices.Equal(got, want) {
			t.Errorf("step %d: x is listed: %t, models %q, want %q; a pick: %v", i, s.Lists("x"), got, want, err)
		}
	}
}

// The memory of a model's policies is released when no instance lists the model any more.
func TestMemory_ReleasedWithModel(t *testing.T) {
	t.Parallel()
	kind := policyNamed(t, policy.DefaultPrefill)
	memory := indexmem.New(0)
	src := &source{}
	src.set(inst(instance.Prefill, "a:1", serving("base", "adapter")))
	s := sched.New(sched.Options{
		Source: src, Health: sick{}, PairKey: members.PairKey,
		Policies: map[instance.Role]policy.Kind{instance.Prefill: kind}, Options: policy.Options{Budget: memory},
	})
	pick := func(model string) {
		t.Helper()
		pick(t, s, sched.Request{Role: instance.Prefill, Model: model, Prompt: []byte(strings.Repeat(model, 1000)), Unpaired: true}).Done()
	}
	pick("base")
	base := memory.Used(indexmem.Prompts)
	pick("adapter")
	used := memory.Used(indexmem.Prompts)
	assert.True(t, base != 0 && used > base, "%d bytes, then %d", base, used)
	src.set(inst(instance.Prefill, "a:1", serving("base")))
	pick("base")
	used = memory.Used(indexmem.Prompts)
	assert.Equal(t, base, used, "%d bytes without the adapter, %d before it", used, base)
	if r, ok := s.Remembered(instance.Prefill); !ok || int64(r.Memory) != base {
		t.Errorf("%+v", r)
	}
}
