package sched_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
)

func ranks(n int) func(*instance.Instance) {
	return func(in *instance.Instance) { in.Record.DPSize = n }
}

// pickCounts picks n times, with 64 picks in flight at a time, and returns the number of picks of each rank.
func pickCounts(t *testing.T, s *sched.Scheduler, n int, r sched.Request) map[string]int {
	t.Helper()
	got := map[string]int{}
	var held []*sched.Assignment
	for range n {
		a := pick(t, s, r)
		got[a.Address()]++
		if held = append(held, a); len(held) > 64 {
			held[0].Done()
			held = held[1:]
		}
	}
	for _, a := range held {
		a.Done()
	}
	return got
}

// Each rank gets as many requests as an instance of the same weight without ranks.
func TestRanks_Share(t *testing.T) {
	t.Parallel()
	eachPolicy(t, func(t *testing.T, name string) {
		s, _ := chosenBy(t, name, nil, false,
			inst(instance.Decode, "a:1", ranks(4)), inst(instance.Decode, "b:1"), inst(instance.Decode, "c:1", ranks(2), weighing(50)))
		const n = 6000
		got := pickCounts(t, s, n, sched.Request{Role: instance.Decode, Model: "m"})
		require.Len(t, got, 7, "targets")
		for target, weight := range map[string]float64{"a:1#0": 1, "a:1#1": 1, "a:1#2": 1, "a:1#3": 1, "b:1": 1, "c:1#0": .5, "c:1#1": .5} {
			want := weight / 6 * n
			off := float64(got[target]) / want
			assert.True(t, off >= .85 && off <= 1.15, "%s: %d, want %.0f", target, got[target], want)
		}
	})
}

// Equal ranks get equal shares.
func TestRanksAreSpread(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"round_robin", "least_loaded"} {
		s, _ := chosenBy(t, name, nil, false, inst(instance.Decode, "a:1", ranks(4)), inst(instance.Decode, "b:1", ranks(2)))
		const n = 6000
		most := 0
		got := pickCounts(t, s, n, sched.Request{Role: instance.Decode, Model: "m"})
		for _, count := range got {
			most = max(most, count)
		}
		assert.True(t, len(got) == 6 && !(float64(most)/(n/6) > 1.1), "%s: %v", name, got)
	}
}

// If an instance has more ranks than the proxy distinguishes, the engine chooses the rank.
func TestTooManyRanks(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]int{-1: 1, 0: 1, 1: 1, 2: 2, instance.MaxRanks: instance.MaxRanks, instance.MaxRanks + 1: 1} {
		s, _ := build(nil, inst(instance.Decode, "a:1", ranks(n)))
		got := pickCounts(t, s, 2*instance.MaxRanks, decode("m"))
		assert.Equal(t, want, len(got), "dp_size %d: targets", n)
	}
}

// A rank that failed a request is not picked for it again; the other
// ranks of its instance are picked only if there is no other instance.
func TestRanks_FailedRankAvoided(t *testing.T) {
	t.Parallel()
	key := func(a string) instance.Key { return instance.Key{Role: instance.Decode, Address: a} }
	target := func(a string, rank int) sched.Target { return sched.Target{Key: key(a), Rank: rank} }
	for _, tc := range []struct {
		name  string
		sick  sick
		tried []instance.Key
		ranks []sched.Target
		want  []string
	}{
		{"nothing tried", nil, nil, nil, []string{"a:1#0", "a:1#1", "a:1#2", "b:1#0", "b:1#1"}},
		{"one rank", nil, nil, []sched.Target{target("a:1", 1)}, []string{"b:1#0", "b:1#1"}},
		{"one of each", nil, nil, []sched.Target{target("a:1", 1), target("b:1", 0)}, []string{"a:1#0", "a:1#2", "b:1#1"}},
		{"the other one wholly", nil, []instance.Key{key("b:1")}, []sched.Target{target("a:1", 1)}, []string{"a:1#0", "a:1#2"}},
		{"the other one out", sick{key("b:1"): true}, nil, []sched.Target{target("a:1", 1)}, []string{"b:1#0", "b:1#1"}},
		{"its own instance out", sick{key("a:1"): true}, []instance.Key{key("b:1")}, []sched.Target{target("a:1", 1)}, nil},
		{"all ranks", nil, []instance.Key{key("b:1")}, []sched.Target{target("a:1", 0), target("a:1", 1), target("a:1", 2)}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s, _ := build(tc.sick, inst(instance.Decode, "a:1", ranks(3)), inst(instance.Decode, "b:1", ranks(2)))
			got := map[string]bool{}
			for range 200 {
				a, err := s.Pick(sched.Request{Role: instance.Decode, Model: "m", Tried: tc.tried, TriedRanks: tc.ranks})
				if err != nil {
					break
				}
				got[a.Address()] = true
				a.Done()
			}
			var list []string
			for a := range got {
				list = append(list, a)
			}
			slices.Sort(list)
			assert.Equal(t, tc.want, list)
		})
	}
}

// While instances are added, removed and change their ranks, the candidates
// equal those of a new scheduler with the same membership. No count is lost.
func TestRanksChange(t *testing.T) {
	t.Parallel()
	sizes := [][]int{{4, 0, 2}, {2, 0, 2}, {2, 3, 0}, {0, 3, 8}, {4, 4, 4}, {0, 0, 0}, {1, 1, 1}}
	list := func(size []int) (out []*instance.Instance) {
		for i, n := range size {
			if n > 0 {
				out = append(out, inst(instance.Decode, fmt.Sprintf("%c:1", 'a'+i), ranks(n)))
			}
		}
		return out
	}
	s, src := build(nil, list(sizes[0])...)
	var held []*sched.Assignment
	for _, size := range sizes {
		src.set(list(size)...)
		want := 0
		for _, n := range size {
			want += n
		}
		got := map[string]bool{}
		for range 3 * want {
			a := pick(t, s, decode("m"))
			got[a.Address()] = true
			held = append(held, a)
		}
		assert.Len(t, got, want, "sizes %v", size)
		sum := int64(0)
		s.Loads.Each(func(_ instance.Key, n int64) { sum += n })
		assert.Equal(t, int64(len(held)), sum, "sizes %v: in flight, want %d", size, len(held))
	}
	for _, a := range held {
		a.Done()
	}
	s.Loads.Each(func(k instance.Key, n int64) {
		assert.True(t, n == 0, "%s has %d in flight", k, n)
	})
}

// Legs in flight are counted for each rank and for the instance. Take chooses the rank with the fewest.
func TestTake_Ranks(t *testing.T) {
	t.Parallel()
	a := inst(instance.Decode, "a:1", ranks(3))
	s, _ := build(nil, a)
	var held []*sched.Assignment
	for range 3 {
		taken, err := s.Take(a)
		require.NoError(t, err)
		held = append(held, taken)
	}
	one := sched.RankLoad{InFlight: 1}
	assert.Equal(t, []sched.RankLoad{one, one, one}, s.Ranks(a))
	held[1].Done()
	held[1].Done()
	assert.Equal(t, []sched.RankLoad{one, {}, one}, s.Ranks(a))
	assert.EqualValues(t, 2, s.InFlight(a.Key), "in flight")
}

// The wanted rank of an instance is picked if the instance has it, otherwise any rank.
func TestWantedRank(t *testing.T) {
	t.Parallel()
	s, _ := build(nil, inst(instance.Decode, "a:1", ranks(3)), inst(instance.Decode, "b:1", ranks(2)), inst(instance.Decode, "c:1"))
	for rank, want := range map[int][]string{
		0: {"a:1#0", "b:1#0", "c:1"},
		1: {"a:1#1", "b:1#1", "c:1"},
		2: {"a:1#2", "b:1#0", "b:1#1", "c:1"},
		7: {"a:1#0", "a:1#1", "a:1#2", "b:1#0", "b:1#1", "c:1"},
	} {
		r := decode("m")
		r.Ranked, r.Rank = true, rank
		got := slices.Sorted(maps.Keys(pickCounts(t, s, 300, r)))
		assert.Equal(t, want, got, "rank %d", rank)
	}
	// If the wanted rank has failed and there is no other instance, no other rank is picked.
	r := decode("m")
	r.Ranked, r.Rank = true, 1
	a := instance.Key{Role: instance.Decode, Address: "a:1"}
	r.Tried = []instance.Key{{Role: instance.Decode, Address: "b:1"}, {Role: instance.Decode, Address: "c:1"}}
	r.TriedRanks = []sched.Target{{Key: a, Rank: 1}}
	if got, err := s.Pick(r); err == nil {
		t.Errorf("picked %s", got.Address())
	}
}

// Ranks returns the load of each rank, and the prompts that policies remember of it.
func TestRanks_MemoryAndLoad(t *testing.T) {
	t.Parallel()
	in := inst(instance.Prefill, "a:1", ranks(3))
	s, _ := chosenBy(t, "prefix", nil, false, in, inst(instance.Decode, "d:1"))
	if sum, ok := s.Remembered(instance.Prefill); !ok || sum != (policy.Remembered{}) {
		t.Errorf("before any request: %+v, %t", sum, ok)
	}
	a := pick(t, s, sched.Request{Role: instance.Prefill, Model: "m", Prompt: []byte(strings.Repeat("text", 2000))})
	all, _ := s.Remembered(instance.Prefill)
	assert.True(t, all.Entries != 0 && all.Text != 0 && all.Text <= 8000 && all.Memory != 0, "%+v", all)
	all.Memory = 0 // shared by all ranks
	for rank, is := range s.Ranks(in) {
		want := sched.RankLoad{}
		if rank == a.Rank {
			want = sched.RankLoad{InFlight: 1, Waiting: is.Waiting, Held: int64(a.Tokens), Prompts: all}
		}
		assert.True(t, is == want && (is.Waiting > 0) == (rank == a.Rank), "rank %d: %+v, want %+v", rank, is, want)
	}
	a.Done()
	got := s.Ranks(in)
	assert.True(t, len(got) == 3 && got[a.Rank] == (sched.RankLoad{Prompts: all}), "after its end: %+v", got)
	got = s.Ranks(inst(instance.Prefill, "unknown:1"))
	assert.True(t, got == nil, "one that is not known: %+v", got)
	byTurns, _ := chosenBy(t, "round_robin", nil, false, in)
	if _, ok := byTurns.Remembered(instance.Prefill); ok {
		t.Error("round_robin remembers prompts")
	}
}
