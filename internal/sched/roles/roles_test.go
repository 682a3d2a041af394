package roles_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched/estimate"
	"github.com/pdmesh/pdmesh/internal/sched/roles"
)

var (
	// A prompt takes half a second; a token takes 10 ms, plus 1 ms for each stream.
	rates = estimate.Rates{
		Prefill: estimate.Line{Each: 0.00005, Samples: 100}, Transfer: estimate.Line{Fixed: 0.05, Samples: 100},
		Token: estimate.Line{Fixed: 0.010, Each: 0.001, Samples: 100}, Output: 200, Uncached: 10000,
	}
	targets = roles.Targets{TTFT: 2, TPOT: 0.05}
	epoch   = time.Unix(0, 0)
)

// steady returns the demand after some minutes of a load.
func steady(model string, l roles.Load) *roles.Demand {
	d := &roles.Demand{Model: model}
	for i := range 300 {
		d.Add(epoch.Add(time.Duration(i)*time.Second), l, rates, targets)
	}
	return d
}

func TestPressure(t *testing.T) {
	t.Parallel()
	idle := roles.Load{Prefill: 2, Decode: 2, Capacity: 1e6}
	busy, streams, queued, refused := idle, idle, idle, idle
	busy.Computing, busy.Waiting = 1.6, 16000
	streams.Streams, streams.Held = 60, 600000
	queued.Computing, queued.Waiting = 2, 200000
	refused.Computing, refused.Refused = 2, 2
	for _, tc := range []struct {
		name            string
		load            roles.Load
		prefill, decode [2]float64 // bounds with the current instances
		wanted          [2]int
	}{
		{"idle", idle, [2]float64{0.2, 0.3}, [2]float64{0.1, 0.3}, [2]int{1, 1}},
		{"prefill is busy", busy, [2]float64{0.8, 2.5}, [2]float64{0.2, 0.4}, [2]int{3, 1}},
		{"many streams", streams, [2]float64{0.2, 0.3}, [2]float64{0.7, 0.9}, [2]int{1, 2}},
		{"prompts queue", queued, [2]float64{10, 20}, [2]float64{0.2, 0.5}, [2]int{3, 1}},
		{"requests are refused", refused, [2]float64{5, 20}, [2]float64{0.2, 0.5}, [2]int{4, 1}},
	} {
		d := steady("m", tc.load)
		for i, role := range instance.Roles() {
			a := d.Advise(role)
			bounds := [][2]float64{tc.prefill, tc.decode}[i]
			if a.Pressure < bounds[0] || a.Pressure > bounds[1] || a.Wanted != tc.wanted[i] || a.Reason == "" || !a.Known {
				t.Errorf("%s: %+v, want a pressure in %v, %d instances", tc.name, a, bounds, tc.wanted[i])
			}
			for n := 1.0; n < 8; n++ {
				if d.Pressure(role, n+1) > d.Pressure(role, n) {
					t.Errorf("%s: %s has pressure %v with %v instances, %v with one more", tc.name, role, d.Pressure(role, n), n, d.Pressure(role, n+1))
				}
			}
		}
	}
	if a := new(roles.Demand).Advise(instance.Decode); a.Known || a.Pressure != 0 || a.Wanted != 0 || a.Reason != "there is no instance" {
		t.Errorf("of nothing: %+v", a)
	}
}

// rig makes one decision per second.
type rig struct {
	auto    roles.Automatic
	now     time.Time
	engines []roles.Engine
}

// after returns the seconds until an engine is moved, and the move; 0 if none is within limit seconds.
func (r *rig) after(limit int, all ...*roles.Demand) (int, roles.Move) {
	for i := range limit {
		r.now = r.now.Add(time.Second)
		if m, ok := r.auto.Decide(r.now, all, r.engines); ok {
			r.auto.Moved(r.now)
			return i + 1, m
		}
	}
	return 0, roles.Move{}
}

func engine(address, models string, prefill, decode bool, inFlight int64) roles.Engine {
	return roles.Engine{Address: address, Models: strings.Fields(models), Prefill: prefill, Decode: decode, InFlight: inFlight}
}

func TestAutomatic(t *testing.T) {
	t.Parallel()
	full := steady("m", roles.Load{Prefill: 2, Decode: 4, Computing: 2, Waiting: 200000, Streams: 20, Held: 1e5, Capacity: 1e6})
	fine := steady("m", roles.Load{Prefill: 2, Decode: 4, Computing: 0.5, Waiting: 5000, Streams: 20, Held: 1e5, Capacity: 1e6})
	both := steady("m", roles.Load{Prefill: 2, Decode: 4, Computing: 2, Waiting: 200000, Streams: 150, Held: 1e6, Capacity: 1e6})
	single := steady("m", roles.Load{Prefill: 2, Decode: 1, Computing: 2, Waiting: 200000, Streams: 1, Held: 1, Capacity: 1e6})
	other := steady("n", roles.Load{Prefill: 2, Decode: 1, Streams: 9, Held: 1e4, Capacity: 1e6, Computing: 0.1})
	engines := []roles.Engine{engine("a", "m", true, false, 1), engine("b", "m", false, true, 9), engine("c", "m", false, true, 3), engine("d", "m", true, true, 0)}
	for _, tc := range []struct {
		name    string
		all     []*roles.Demand
		engines []roles.Engine
		after   int
		address string
	}{
		{"one role is full", []*roles.Demand{full}, engines, 31, "c"},
		{"only an engine in both roles", []*roles.Demand{full}, engines[3:], 31, "d"},
		{"no role is full", []*roles.Demand{fine}, engines, 0, ""},
		{"both roles are full", []*roles.Demand{both}, engines, 0, ""},
		{"the last one of a role", []*roles.Demand{single}, engines[:2], 0, ""},
		{"no engine may move", []*roles.Demand{full}, engines[:1], 0, ""},
		{"the engine is needed for another model", []*roles.Demand{full, other}, []roles.Engine{engine("e", "m n", false, true, 0)}, 0, ""},
	} {
		r := &rig{now: epoch, engines: tc.engines}
		after, m := r.after(600, tc.all...)
		if after != tc.after || m.Address != tc.address || m.Address != "" && (m.Role != instance.Prefill || !strings.Contains(m.Reason, "prefill has pressure")) {
			t.Errorf("%s: after %d s %+v, want %s after %d s", tc.name, after, m, tc.address, tc.after)
		}
	}

	// Two moves are at least two minutes apart, and a pressure must be high for 30 s before a move.
	r := &rig{now: epoch, engines: engines}
	r.after(600, full)
	if after, _ := r.after(600, full); after != 120 {
		t.Errorf("the next move is after %d s, want 120", after)
	}
	r.after(130, fine)
	for range 20 {
		if after, _ := r.after(29, full); after != 0 {
			t.Fatal("moved before the pressure was high for 30 s")
		}
		r.after(1, fine)
	}
	r.after(29, full)
	r.auto.Reset()
	if after, _ := r.after(29, full); after != 0 {
		t.Error("moved although the state of the fleet was not known meanwhile")
	}
}

// A role without an instance gets one, even while the speed of engines is unknown.
func TestEmptyRole(t *testing.T) {
	t.Parallel()
	unknown := func(model string, prefill, decode float64) *roles.Demand {
		d := &roles.Demand{Model: model}
		d.Add(epoch, roles.Load{Prefill: prefill, Decode: decode}, estimate.Rates{}, targets)
		return d
	}
	prefill := []roles.Engine{engine("a", "m", true, false, 1), engine("b", "m", true, false, 0)}
	decode := []roles.Engine{engine("a", "m", false, true, 1), engine("b", "m", false, true, 0)}
	queued := steady("m", roles.Load{Prefill: 2, Computing: 2, Waiting: 1e7, Refused: 1000, Capacity: 1e6})
	alone := steady("m", roles.Load{Decode: 2, Streams: 60, Held: 6e5, Capacity: 1e6})
	for _, tc := range []struct {
		name    string
		all     []*roles.Demand
		engines []roles.Engine
		after   int
		role    instance.Role
		both    bool
	}{
		{"no decode", []*roles.Demand{unknown("m", 2, 0)}, prefill, 121, instance.Decode, false},
		{"no prefill", []*roles.Demand{unknown("m", 0, 2)}, decode, 121, instance.Prefill, false},
		{"no decode, and the last prefill", []*roles.Demand{unknown("m", 1, 0)}, prefill[1:], 121, instance.Decode, true},
		{"no prefill, and the last decode", []*roles.Demand{unknown("m", 0, 1)}, decode[1:], 121, instance.Prefill, true},
		{"the last one serves another model", []*roles.Demand{unknown("m", 1, 0), unknown("n", 1, 1)}, []roles.Engine{engine("b", "m n", true, false, 0)}, 121, instance.Decode, true},
		{"no engine may move", []*roles.Demand{unknown("m", 0, 2)}, nil, 0, "", false},
		{"no role is empty", []*roles.Demand{unknown("m", 2, 1)}, prefill, 0, "", false},
		{"another model", []*roles.Demand{unknown("m", 2, 1), unknown("n", 2, 0)}, prefill, 0, "", false},
		{"the engine serves another model", []*roles.Demand{unknown("m", 2, 0), unknown("n", 2, 1)}, []roles.Engine{engine("a", "m n", true, false, 0)}, 0, "", false},
		{"no decode, and prefill is full", []*roles.Demand{queued}, prefill, 31, instance.Decode, false},
		{"no prefill, and decode is busy", []*roles.Demand{alone}, decode, 0, "", false},
	} {
		r := &rig{now: epoch, engines: tc.engines}
		after, m := r.after(600, tc.all...)
		if after != tc.after || m.Role != tc.role || m.Both != tc.both || m.Address != "" && (m.Address != "b" || !strings.Contains(m.Reason, "there is no instance")) {
			t.Errorf("%s: after %d s %+v, want %s after %d s", tc.name, after, m, tc.role, tc.after)
		}
	}
	a := unknown("m", 2, 0).Advise(instance.Decode)
	assert.True(t, !a.Known && a.Pressure == 0 && a.Reason == "there is no instance", "advice without decode: %+v", a)
	if a := unknown("m", 0.5, 0.5).Advise(instance.Decode); a.Known || a.Fewer != 0 || !strings.Contains(a.Reason, "too few") {
		t.Errorf("advice for an engine in both roles: %+v", a)
	}
}
