package sched_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

func labelled(zone string) func(*instance.Instance) {
	return func(in *instance.Instance) { in.Record.Labels = map[string]string{"zone": zone} }
}

// inZone returns a scheduler of a proxy in a zone.
func inZone(t *testing.T, zone, name string, health sched.Health, list ...*instance.Instance) *sched.Scheduler {
	t.Helper()
	kind := policyNamed(t, name)
	if health == nil {
		health = sick{}
	}
	src := &source{}
	src.set(list...)
	return sched.New(sched.Options{
		Source: src, Health: health, Zone: zone, NoBinding: true,
		PairKey:  members.PairKey,
		Policies: map[instance.Role]policy.Kind{instance.Prefill: kind, instance.Decode: kind},
	})
}

// twoZones returns two prefill and two decode instances in each of two zones.
func twoZones() (list []*instance.Instance) {
	for _, zone := range []string{"a", "b"} {
		for i := range 2 {
			list = append(list, inst(instance.Prefill, fmt.Sprintf("%s:%d", zone, 10+i), labelled(zone)),
				inst(instance.Decode, fmt.Sprintf("%s:%d", zone, 20+i), labelled(zone)))
		}
	}
	return list
}

// zoneOf returns the zone of a pick, which is in its address.
func zoneOf(a *sched.Assignment) string { return a.Instance.Address[:1] }

// With every policy, a proxy in a zone picks instances of that zone.
func TestZoneIsPreferred(t *testing.T) {
	t.Parallel()
	eachPolicy(t, func(t *testing.T, name string) {
		s := inZone(t, "b", name, nil, twoZones()...)
		for _, role := range instance.Roles() {
			got := map[string]int{}
			for i := range 40 {
				a := pick(t, s, sched.Request{Role: role, Model: "m", Session: fmt.Sprint(i), Prompt: []byte(strings.Repeat(fmt.Sprint("prompt ", i, ", "), 50))})
				a.Done()
				assert.True(t, zoneOf(a) == "b" && a.Elsewhere == "", "%s: %q", a.Instance.Key, a.Elsewhere)
				got[a.Instance.Address]++
			}
			assert.Len(t, got, 2, "not all of the zone are used")
			assert.Len(t, elsewhereCounts(s, role), 0, "counted")
		}
	})
}

// A proxy without a zone picks decode in the zone of prefill.
func TestDecode_InZoneOfPrefill(t *testing.T) {
	t.Parallel()
	s := inZone(t, "", "round_robin", nil, twoZones()...)
	zones := map[string]bool{}
	for range 16 {
		p := pick(t, s, sched.Request{Role: instance.Prefill, Model: "m"})
		d, err := s.Pick(sched.Request{Role: instance.Decode, Model: "m", Partner: p})
		assert.True(t, err == nil && zoneOf(d) == zoneOf(p),
			"prefill on %s, decode on %s: %v", p.Instance.Key, d.Instance.Key, err)
		zones[zoneOf(p)] = true
		p.Done()
		d.Done()
	}
	assert.Len(t, zones, 2, "prefill stayed in")
}

// If no instance of the zone may be picked, instances of other zones are, and these picks are counted.
func TestZone_NoneAvailable(t *testing.T) {
	t.Parallel()
	out := sick{}
	for _, in := range twoZones() {
		if in.Address[:1] == "b" {
			out[in.Key] = true
		}
	}
	none := inst(instance.Decode, "c:1") // without a zone
	for name, s := range map[string]*sched.Scheduler{
		"all out":     inZone(t, "b", "round_robin", out, append(twoZones(), none)...),
		"there is no": inZone(t, "z", "round_robin", nil, append(twoZones(), none)...),
	} {
		a, err := s.Pick(decode("m"))
		require.True(t, err == nil && zoneOf(a) != "z" && a.Elsewhere == "zone_none", "%s: %v, %v", name, a, err)
		n := elsewhereCounts(s, instance.Decode)
		assert.EqualValues(t, 1, n["zone_none"], "%s: counted %v", name, n)
	}
	// If no instance has a zone, none is preferred and nothing is counted.
	s := inZone(t, "b", "round_robin", nil, none, inst(instance.Decode, "c:2"))
	if a, err := s.Pick(decode("m")); err != nil || a.Elsewhere != "" || len(elsewhereCounts(s, instance.Decode)) != 0 {
		t.Errorf("%v, %v, counted %v", a, err, elsewhereCounts(s, instance.Decode))
	}
}

// While a zone has more than twice the average load, instances of the other zones are picked.
func TestZoneOverloaded(t *testing.T) {
	t.Parallel()
	var list []*instance.Instance
	for i := range 6 {
		list = append(list, inst(instance.Decode, fmt.Sprintf("a:%d", i), labelled("a")))
	}
	list = append(list, inst(instance.Decode, "b:1", labelled("b")))
	s := inZone(t, "b", "round_robin", nil, list...)
	var held []*sched.Assignment
	for range 9 {
		a, err := s.Pick(decode("m"))
		require.True(t, err == nil && zoneOf(a) == "b", "%d are few: %v, %v", len(held), a.Instance.Key, err)
		held = append(held, a)
	}
	a, err := s.Pick(decode("m"))
	require.True(t, err == nil && zoneOf(a) == "a" && a.Elsewhere == "zone_overloaded", "%v, %v", a, err)
	n := elsewhereCounts(s, instance.Decode)
	assert.EqualValues(t, 1, n["zone_overloaded"], "counted %v", n)
	held[0].Done()
	if a, err := s.Pick(decode("m")); err != nil || zoneOf(a) != "b" {
		t.Errorf("it has room again: %v, %v", a.Instance.Key, err)
	}
}

// Decode instances with full KV caches are not preferred for their zone.
func TestZone_FullKVCaches(t *testing.T) {
	t.Parallel()
	s := inZone(t, "b", "least_loaded", nil, inst(instance.Decode, "a:1", labelled("a")), inst(instance.Decode, "b:1", labelled("b")))
	if a, err := s.Pick(decode("m")); err != nil || zoneOf(a) != "b" {
		t.Fatalf("%v, %v", a, err)
	}
	s.Loads.SetEngine(instance.Key{Role: instance.Decode, Address: "b:1"}, engineReport(policy.Rank{Starved: 1}))
	if a, err := s.Pick(decode("m")); err != nil || zoneOf(a) != "a" || a.Elsewhere != "zone_none" {
		t.Errorf("%v, %v", a, err)
	}
}

// Explain names the instances outside the zone; an unconfirmed tentative pick is not counted.
func TestExplain_Zone(t *testing.T) {
	t.Parallel()
	s := inZone(t, "b", "round_robin", nil, inst(instance.Decode, "a:1", labelled("a")), inst(instance.Decode, "b:1", labelled("b")))
	outs := func() string {
		out := ""
		for _, c := range s.Explain(decode("m")).Candidates {
			out += c.Address + "=" + c.Out + " "
		}
		return out
	}
	assert.Equal(t, "a:1=zone b:1= ", outs())
	s.Loads.SetOthers(map[string]instance.OthersLoad{"b:1": {InFlight: 100}})
	assert.Equal(t, "a:1=zone b:1= ", outs(), "of two none is overloaded")
	r := decode("m")
	r.Tentative, r.Tried = true, []instance.Key{{Role: instance.Decode, Address: "b:1"}}
	a, err := s.Pick(r)
	require.True(t, err == nil && a.Elsewhere == "zone_none" && len(elsewhereCounts(s, instance.Decode)) == 0,
		"%v, %v, counted %v", a, err, elsewhereCounts(s, instance.Decode))
	a.Confirm()
	n := elsewhereCounts(s, instance.Decode)
	assert.EqualValues(t, 1, n["zone_none"], "counted %v", n)
	a.Done()
}
