package policy

import (
	"math"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
)

// The reported load of other proxies counts as much as this proxy's, and leaves no remainder when it ends.
func TestWeigh(t *testing.T) {
	t.Parallel()
	engine := func(r Rank) *Engine { return &Engine{Ranks: []Rank{r}, All: r} }
	for _, tc := range []struct {
		name   string
		own    []int // tokens of each leg
		others [2]float64
		engine *Engine
		want   float64
	}{
		{name: "nothing"},
		{name: "own legs and their tokens", own: []int{0, 4096}, want: 2.5},
		{name: "those of others", own: []int{0}, others: [2]float64{3, 16384}, want: 6},
		{name: "half of another's, whose word is old", others: [2]float64{0.5, 0}, want: 0.5},
		{name: "who waits for room", own: []int{0}, engine: engine(Rank{Waiting: 4}), want: 5},
		{name: "who waits for its KV cache counts once", engine: engine(Rank{Waiting: 4, Deferred: 3, Fetching: 2}), want: 3},
		{name: "half full is as good as empty", own: []int{0}, engine: engine(Rank{Usage: 0.5}), want: 1},
		{name: "three quarters", own: []int{0, 0, 0}, engine: engine(Rank{Usage: 0.75}), want: 5},
		{name: "full", others: [2]float64{3, 0}, engine: engine(Rank{Usage: 1}), want: 7},
		{name: "more than can be", others: [2]float64{math.MaxFloat32, 0}, want: 1 << 39},
	} {
		l := fleet(1)[0].Load
		for _, n := range tc.own {
			l.Begin(n)
		}
		l.Others.InFlight.Store(tc.others[0])
		l.Others.Held.Store(tc.others[1])
		l.Engine.Store(tc.engine)
		l.Weigh()
		l.Weigh()
		assert.Equal(t, tc.want, l.Legs(), "%s: legs", tc.name)
		l.Others = Others{}
		l.Engine.Store(nil)
		l.Weigh()
		for _, n := range tc.own {
			l.End(n)
		}
		assert.EqualValues(t, 0, l.sum.Load(), "%s: left", tc.name)
	}
}

// End subtracts exactly what Begin added, whatever Weigh does meanwhile.
func TestWeigh_ConcurrentLegs(t *testing.T) {
	t.Parallel()
	l := &Load{}
	var all sync.WaitGroup
	for n := range 4 {
		all.Go(func() {
			for i := range 2000 {
				l.Begin(i)
				l.Others.InFlight.Store(float64(i * n % 7))
				l.Weigh()
				l.End(i)
			}
		})
	}
	all.Wait()
	l.Others.InFlight.Store(0)
	l.Weigh()
	assert.True(t, l.sum.Load() == 0 && l.InFlight.Load() == 0 && l.Held.Load() == 0,
		"%d, %d legs and %d tokens are left", l.sum.Load(), l.InFlight.Load(), l.Held.Load())
}

// A candidate that only other proxies use is not taken for idle, whatever the number of candidates.
func TestLoad_OfOtherProxies(t *testing.T) {
	t.Parallel()
	for name, make := range map[string]func(Options) Policy{"least_loaded": newLeastLoaded, "power_of_two": newPowerOfTwo} {
		for _, n := range []int{2, 100} {
			c := All(fleet(ones(n)...))
			for i := range n - 1 {
				c.At(i).Load.Others.InFlight.Store(2)
				c.At(i).Load.Weigh()
			}
			hold(c.At(n-1), 1)
			p := make(seeded())
			got := 0
			for range 1000 {
				if i, _ := p.Choose(c, Request{}); i == n-1 {
					got++
				}
			}
			want := 1000
			if name == "power_of_two" {
				want = 2000 / n // probability 2/n of being drawn
			}
			assert.True(t, got >= want*7/10 && got <= want*13/10,
				"%s among %d: the least loaded one was chosen %d times of 1000, want %d", name, n, got, want)
		}
	}
}

func ones(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = 1
	}
	return out
}
