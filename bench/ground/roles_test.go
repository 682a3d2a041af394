package ground_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/bench/ground"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/loadgen"
	"github.com/pdmesh/pdmesh/sim/testkit/longform"
)

// mixed returns requests with approximately the lengths of the recorded trace.
func mixed() []loadgen.Entry {
	rng := rand.New(rand.NewPCG(7, 7))
	out := make([]loadgen.Entry, 4000)
	for i := range out {
		out[i] = loadgen.Entry{InputLength: 500 + int(11500*rng.ExpFloat64()), OutputLength: 20 + int(320*rng.ExpFloat64())}
	}
	return out
}

// From the worst ratio, automatic roles become better than any static ratio, and do not oscillate.
func TestRoles_Day(t *testing.T) {
	t.Parallel()
	d := ground.NewDay(mixed(), 8, time.Duration(longform.Count(30, 60))*time.Minute, 0.8, 0.2, 1)
	static := 0.0
	for p := 1; p < 8; p++ {
		static = max(static, d.Run([]int{p}, false).All)
	}
	for _, start := range []int{1, 7} {
		got := d.Run([]int{start}, true)
		if got.All <= static || len(got.Moves) > 14 {
			t.Errorf("from %d prefill engines: goodput %.3f with %d moves, the best static ratio has %.3f\n%q", start, got.All, len(got.Moves), static, got.Moves)
		}
	}
}

// At ten loads, the advice is within one instance of the smallest fleet that meets the targets: in that
// fleet, and in one with two more engines of each role.
func TestRoles_Advice(t *testing.T) {
	t.Parallel()
	for i := range longform.Count(2, 10) {
		rate := float64(2*i + 2)
		size := ground.SmallestFleet(mixed(), rate, 1)
		for _, more := range []int{0, 2} {
			wanted := ground.Fleet(mixed(), rate, 1, size[0]+more, size[1]+more).Wanted
			t.Logf("%v requests/s: smallest fleet %d, advice with %d more of each %.2f", rate, size, more, wanted)
			for i, role := range instance.Roles() {
				assert.True(t, !(math.Abs(wanted[i]-float64(size[i])) > 1),
					"%v requests/s: %.2f %s instances are wanted, %d are needed", rate, wanted[i], role, size[i])
			}
		}
	}
}
