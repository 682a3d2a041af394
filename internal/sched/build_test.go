package sched

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
	"github.com/pdmesh/pdmesh/sim/testkit/longform"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

type healthy struct{}

func (healthy) Troubled() []instance.Key             { return nil }
func (healthy) Failing(instance.Key, string) bool    { return false }
func (healthy) Available(instance.Key) bool          { return true }
func (healthy) Unreachable(instance.Key) bool        { return false }
func (healthy) SilentFor(instance.Key) time.Duration { return 0 }
func (healthy) Share(instance.Key) float64           { return 1 }

type fixed struct{ s *instance.Snapshot }

func (f *fixed) Snapshot() *instance.Snapshot { return f.s }

func schedulerOf(f *fixed) *Scheduler {
	return New(Options{Source: f, Health: healthy{}, PairKey: members.PairKey})
}

// member returns an instance that serves these models.
func member(role instance.Role, address string, models ...string) *instance.Instance {
	return &instance.Instance{
		Key: instance.Key{Role: role, Address: address}, Verified: true,
		Record: instance.Record{Models: models, State: instance.Ready, Connector: "plain"},
	}
}

// process returns an incarnation of the decode instance d:1.
func process(id string) *instance.Instance {
	in := member(instance.Decode, "d:1", "m")
	in.Record.ID = id
	return in
}

// randomInstance returns an instance with random models, dialect and state.
func randomInstance(rng *rand.Rand, k instance.Key, pending bool) *instance.Instance {
	in := &instance.Instance{Key: k, Verified: rng.IntN(5) > 0, Record: instance.Record{
		Models:    [][]string{{"m"}, {"m"}, {"m", "n"}, {"n", "m", "n"}, {"o"}, nil}[rng.IntN(6)],
		Connector: []string{"plain", "plain", "nixl", ""}[rng.IntN(4)],
		State:     []instance.State{instance.Ready, instance.Ready, instance.Ready, instance.Down}[rng.IntN(4)],
		Weight:    []*int{nil, nil, new(50), new(0)}[rng.IntN(4)],
	}}
	if pending {
		in.View = instance.Pending
	}
	return in
}

// describe returns an index as text, without the state of its policies.
func describe(ix *index) []string {
	var out []string
	list := func(what string, c *candidates) {
		for i := range c.all.Len() {
			one, own := c.all.At(i), c.facts[i]
			out = append(out, fmt.Sprintf("%s: %s %p %v %t %t %g", what, one.Instance.Key, one.Instance, own.pairKey, own.slow, own.both, one.Weight))
			if one.Load != &own.counter.load || one != &c.items[i] {
				out = append(out, "with what belongs to another")
			}
		}
		out = append(out, fmt.Sprintf("%d slow, %d in both of %d, even %t", c.slow, c.both, len(c.items), c.all.Even()))
		if len(c.items) == 0 {
			out = append(out, what+": none")
		}
	}
	for _, r := range instance.Roles() {
		ri := ix.role(r)
		list(string(r), ri.all)
		for _, m := range slices.Sorted(maps.Keys(ri.byModel)) {
			list(string(r)+" "+m, ri.byModel[m])
		}
		out = append(out, fmt.Sprint(r, " ", ri.pairKeys, ri.alike))
	}
	return out
}

// naive checks the lists of an index against its snapshot alone.
func naive(ix *index) error {
	is := func(in *instance.Instance) bool { return (in.Usable() || in.Slow()) && in.Record.Connector != "" }
	for _, r := range instance.Roles() {
		ri := ix.role(r)
		known := map[string]*candidates{"": ri.all}
		for _, in := range ix.snapshot.All() {
			for _, m := range in.Record.Models {
				known[m] = ri.byModel[m]
			}
		}
		if len(known) != len(ri.byModel)+1 || len(known) != len(ix.models)+1 {
			return fmt.Errorf("%s: %d lists, and %d models are known: %q", r, len(ri.byModel), len(known)-1, ix.models)
		}
		for m, list := range known {
			var want, got []string
			for _, in := range ix.snapshot.All() {
				if in.Role == r && is(in) && in.ServesModel(m) {
					other, _ := ix.snapshot.Lookup(instance.Key{Role: r.Other(), Address: in.Address})
					want = append(want, fmt.Sprintf("%p %t", in, other != nil && is(other)))
				}
			}
			for i := range list.items {
				got = append(got, fmt.Sprintf("%p %t", list.items[i].Instance, list.facts[i].both))
			}
			if !slices.Equal(got, want) {
				return fmt.Errorf("%s of %q: got %v, want %v", r, m, got, want)
			}
		}
	}
	return nil
}

// An index that is updated from the previous one equals one that is built from its
// snapshot alone. Its counters are those of its members and of the legs in flight.
func TestIndex_MembershipChange(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(9, 10))
	for range longform.Count(8, 40) {
		src := &fixed{instance.NewSnapshot(0, nil)}
		s := schedulerOf(src)
		type place struct {
			k       instance.Key
			pending bool
		}
		here := map[place]*instance.Instance{}
		var running []*Assignment
		for step := range 120 {
			for range 1 + rng.IntN(4) {
				p := place{instance.Key{Role: instance.Roles()[rng.IntN(2)], Address: fmt.Sprintf("a%d:1", rng.IntN(9))}, rng.IntN(8) == 0}
				if rng.IntN(3) == 0 {
					delete(here, p)
				} else {
					here[p] = randomInstance(rng, p.k, p.pending)
				}
			}
			snap := instance.NewSnapshot(int64(step), slices.Collect(maps.Values(here)))
			if rng.IntN(2) == 0 {
				s.Prepare(snap)
			}
			src.s = snap
			if a, err := s.Pick(Request{Role: instance.Decode, Model: []string{"", "m", "n"}[rng.IntN(3)]}); err == nil {
				require.True(t, here[place{a.Instance.Key, false}] == a.Instance, "picked %+v, which is not there", a.Instance)
				running = append(running, a)
			}
			for len(running) > 6 {
				running[0].Done()
				running = running[1:]
			}
			require.NoError(t, naive(s.index.current()), "step %d", step)
			fresh := schedulerOf(src)
			if got, want := describe(s.index.current()), describe(fresh.index.current()); !slices.Equal(got, want) {
				t.Fatalf("step %d: got\n%v\nwant\n%v", step, got, want)
			}
			// Each engine has one count, which both of its roles report.
			want, loads := map[instance.Key]int64{}, map[string]int64{}
			for _, a := range running {
				loads[a.Instance.Address]++
			}
			for p, in := range here {
				if !p.pending {
					want[p.k] = loads[p.k.Address]
					require.NoError(t, s.Removed(&Assignment{Instance: in, counter: s.Loads.counters.m[p.k.Address].counter}),
						"%s is there", p.k)
				}
			}
			got := map[instance.Key]int64{}
			s.Loads.Each(func(k instance.Key, n int64) {
				_, member := want[k]
				_, other := want[k.Other()]
				if got[k] = n; !member && (other || n == 0 || n != loads[k.Address]) {
					t.Fatalf("step %d: %s is shown with %d, its engine has %d", step, k, n, loads[k.Address])
				}
			})
			for k, n := range want {
				if shown, ok := got[k]; !ok || shown != n {
					t.Fatalf("step %d: counters %v, want %v", step, got, want)
				}
			}
			for address, n := range loads {
				if got[instance.Key{Role: instance.Prefill, Address: address}] == n || got[instance.Key{Role: instance.Decode, Address: address}] == n {
					continue
				}
				t.Fatalf("step %d: %d in flight at %s are not shown", step, n, address)
			}
			if n := len(s.Loads.counters.m); n > len(want)+4 {
				t.Fatalf("step %d: %d counters are kept for %d", step, n, len(want))
			}
		}
	}
}

// An update of an index keeps the lists that a change does not
// affect; lists with the same candidates are shared.
func TestIndex_SharesUnchangedLists(t *testing.T) {
	t.Parallel()
	p, d1, d2, d3 := member(instance.Prefill, "p:1", "m"), member(instance.Decode, "d:1", "m", "a", "b"), member(instance.Decode, "d:2", "m", "c"), member(instance.Decode, "d:3", "a", "b", "m")
	src := &fixed{instance.NewSnapshot(1, []*instance.Instance{p, d1, d2, d3})}
	s := schedulerOf(src)
	before := s.index.current()
	src.s = instance.NewSnapshot(2, []*instance.Instance{p, d1, member(instance.Decode, "d:2", "m", "c"), d3})
	after := s.index.current()
	assert.True(t, after.prefill.all == before.prefill.all && after.prefill.byModel["m"] == before.prefill.byModel["m"],
		"the prefill lists are others after a change of a decode instance")
	was, is := before.decode.byModel, after.decode.byModel
	assert.True(t, is["a"] == was["a"] && is["b"] == was["b"] && is["m"] != was["m"] && is["c"] != was["c"],
		"not exactly the lists of the instance are others")
	for _, c := range []struct {
		a, b *candidates
		n    int
	}{{is["m"], after.decode.all, 3}, {is["a"], is["b"], 2}} {
		assert.True(t, len(c.a.items) == c.n && len(c.b.items) == c.n && &c.a.items[0] == &c.b.items[0],
			"lists with the same candidates do not share them")
	}
	src.s = instance.NewSnapshot(3, slices.Clone(src.s.All()))
	if last := s.index.current(); last.decode.all != after.decode.all || !maps.Equal(last.decode.byModel, is) || last.snapshot != src.s {
		t.Error("lists are others after a snapshot without a change")
	}
}

// BenchmarkPrepare measures building and preparing a snapshot with one change: with one model,
// and with many adapters, which are on all instances, on all but one, or each on some.
func BenchmarkPrepare(b *testing.B) {
	for _, c := range []struct {
		name      string
		instances int
		models    int // of each instance
		odd       int // the instance with only one of them; -1: none
		of        int // all models; if more than models, instances list different ones
	}{
		{"1000", 1000, 1, -1, 1},
		{"10000", 10000, 1, -1, 1},
		{"400 adapters", 1000, 400, -1, 400},
		{"400 adapters but on one", 1000, 400, 10, 400},
		{"2500 adapters on some", 1000, 50, -1, 2500},
	} {
		b.Run(c.name, func(b *testing.B) {
			all := make([]*instance.Instance, c.instances)
			for i := range all {
				models := make([]string, c.models)
				for j := range models {
					at := j
					if c.of > c.models {
						at = (i*7919 + j*(i*31+17)) % c.of
					}
					models[j] = fmt.Sprintf("adapter-%d", at)
				}
				if i == c.odd {
					models = models[:1]
				}
				all[i] = &instance.Instance{
					Key:      instance.Key{Role: instance.Roles()[i%2], Address: fmt.Sprintf("10.%d.%d.%d:8000", i>>16, i>>8&255, i&255)},
					Verified: true,
					Record:   instance.Record{Models: models, State: instance.Ready, Connector: "plain"},
				}
			}
			src := &fixed{instance.NewSnapshot(1, all)}
			s := schedulerOf(src)
			s.Prepare(src.s)
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				next := slices.Clone(src.s.All())
				is := *next[i%c.instances]
				next[i%c.instances] = &is
				src.s = instance.NewSnapshot(1, next)
				s.Prepare(src.s)
				i += 7
			}
		})
	}
}

// A pick may outlive its counter and the counter's entry. Removed then depends on the membership only.
func TestRemoved_WithoutCounter(t *testing.T) {
	t.Parallel()
	first := process("first")
	src := &fixed{instance.NewSnapshot(1, []*instance.Instance{first})}
	s := schedulerOf(src)
	idle, err := s.Pick(Request{Role: instance.Decode})
	require.NoError(t, err)
	idle.Done()
	for _, step := range []struct {
		name string
		all  []*instance.Instance
		left bool
	}{
		{"it is there", []*instance.Instance{first}, false},
		{"it left", nil, true},
		{"nothing is known of it any more", nil, true},
		{"another life at its address", []*instance.Instance{process("second")}, true},
		{"the same life again", []*instance.Instance{process("first")}, false},
		{"another life once more", []*instance.Instance{process("third")}, true},
		{"itself again", []*instance.Instance{first}, false},
	} {
		src.s = instance.NewSnapshot(src.s.Revision+1, step.all)
		if err := s.Removed(idle); (err != nil) != step.left {
			t.Errorf("%s, the index is not built: %v", step.name, err)
		}
		require.Same(t, src.s, s.index.current().snapshot, "%s: the index is not the snapshot's", step.name)
		if err := s.Removed(idle); (err != nil) != step.left {
			t.Errorf("%s: %v", step.name, err)
		}
	}
	assert.True(t, s.Loads.counters.m[first.Address].counter != idle.counter,
		"the counter was never let go of, so that nothing was shown")
	// A leg in flight keeps its counter, even if a new entry uses the same counter later.
	busy, err := s.Pick(Request{Role: instance.Decode})
	require.NoError(t, err)
	src.s = instance.NewSnapshot(src.s.Revision+1, []*instance.Instance{process("fourth")})
	if s.index.current(); s.Removed(busy) == nil || s.Loads.counters.m[first.Address].counter != busy.counter {
		t.Error("another incarnation is at the address of one in flight")
	}
}

// A counter fills two cache lines of the CPU; the fields that
// legs and policies use most are in the first one.
func TestCounter_TwoCacheLines(t *testing.T) {
	t.Parallel()
	if unsafe.Sizeof(uintptr(0)) != 8 {
		t.Skip("lines are counted for 64 bits")
	}
	var c counter
	if size := unsafe.Sizeof(c); size <= 112 || size > 128 {
		t.Errorf("a counter takes %d bytes; objects of more than 112 and up to 128 have two lines each", size)
	}
	sum, ok := reflect.TypeFor[policy.Load]().FieldByName("sum") // the last of these fields
	end := unsafe.Offsetof(c.load) + sum.Offset + sum.Type.Size()
	assert.True(t, ok && end <= 64, "what is needed often ends at byte %d, want 64 at most", end)
	size := unsafe.Sizeof(rankLoad{})
	assert.EqualValues(t, 0, size%64, "the load of a rank takes %d bytes, no whole lines", size)
}
