package sched

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

// opinions is a health with these instances in trouble.
type opinions map[instance.Key]struct{ out, hard, suspended bool }

func (w opinions) Troubled() []instance.Key {
	var keys []instance.Key
	for k := range w {
		keys = append(keys, k)
	}
	return keys
}
func (w opinions) Available(k instance.Key) bool      { return !w[k].out && !w[k].suspended }
func (w opinions) Unreachable(k instance.Key) bool    { return w[k].out && w[k].hard }
func (opinions) Failing(instance.Key, string) bool    { return false }
func (opinions) SilentFor(instance.Key) time.Duration { return 0 }
func (w opinions) Share(k instance.Key) float64 {
	if w[k].suspended {
		return 0
	}
	return 1
}

// admittedOneByOne is a simple model of admitted: it calls health for each candidate.
func admittedOneByOne(s *Scheduler, ix *index, list *candidates, r *Request) (all []int) {
	health := s.opts.Health
	var reachable, in []int
	out := 0 // reachable instances: the ejected ones minus the available ones
	for i := range list.items {
		k := list.items[i].Instance.Key
		fit := r.Partner == nil || r.Partner.Connector == list.facts[i].pairKey.Connector
		if r.Partner == nil && r.Role == instance.Prefill && !r.Unpaired {
			fit = slices.ContainsFunc(ix.decode.all.facts, func(d facts) bool { return d.pairKey == list.facts[i].pairKey })
		}
		if !fit || health.Share(k) == 0 {
			continue
		}
		untried, available := !slices.Contains(r.Tried, k), health.Available(k)
		if untried {
			all = append(all, i)
		}
		if list.facts[i].slow || health.Unreachable(k) {
			continue
		}
		if out++; available {
			out -= 2
		}
		if untried {
			reachable = append(reachable, i)
		}
		if untried && available {
			in = append(in, i)
		}
	}
	switch {
	case len(reachable) == 0:
		return all
	case out > 0, len(in) == 0:
		return reachable
	default:
		return in
	}
}

// admitted returns the same candidates as admittedOneByOne, for every
// request and every trouble, and the whole list if possible.
func TestAdmitted(t *testing.T) {
	t.Parallel()
	rng, asleep := rand.New(rand.NewPCG(5, 8)), rand.New(rand.NewPCG(5, 9))
	seen := map[string]int{}
	for round := range 1500 {
		var all []*instance.Instance
		n := 4 + rng.IntN(60)
		mixed := rng.IntN(3) == 0
		for i := range n {
			in := &instance.Instance{
				Key:      instance.Key{Role: instance.Roles()[rng.IntN(2)], Address: fmt.Sprintf("a%d:1", rng.IntN(10*n))},
				Verified: true, Record: instance.Record{Models: []string{"m"}, State: instance.Ready, Connector: "plain"},
			}
			if i%5 == 0 {
				in.Record.Models = []string{"m", "n"}
			}
			if mixed && i%2 == 0 {
				in.Record.Connector = "nixl"
			}
			if round%4 == 0 && rng.IntN(8) == 0 {
				in.Record.State, in.Record.Cause = instance.Down, instance.CauseSlow
			}
			if !slices.ContainsFunc(all, func(o *instance.Instance) bool { return o.Key == in.Key }) {
				all = append(all, in)
			}
		}
		sick := opinions{}
		for range rng.IntN([]int{1, 4, 2 * n}[rng.IntN(3)]) {
			k := all[rng.IntN(len(all))].Key
			if rng.IntN(6) == 0 {
				k.Address = "absent" + k.Address
			}
			sick[k] = struct{ out, hard, suspended bool }{rng.IntN(4) > 0, rng.IntN(2) == 0, asleep.IntN(6) == 0}
		}
		s := New(Options{
			Source: &fixed{instance.NewSnapshot(1, all)}, Health: sick,
			PairKey: members.PairKey,
		})
		ix := s.index.current()
		r := Request{Role: instance.Roles()[rng.IntN(2)], Model: []string{"", "m", "n", "o"}[rng.IntN(4)], Unpaired: rng.IntN(4) == 0}
		if rng.IntN(2) == 0 {
			r.Partner = &Assignment{PairKey: connector.PairKey{Connector: []string{"plain", "nixl"}[rng.IntN(2)]}}
		}
		if rng.IntN(4) == 0 {
			r.Tried = []instance.Key{all[rng.IntN(len(all))].Key}
			for range asleep.IntN(n / 2) {
				r.Tried = append(r.Tried, all[asleep.IntN(len(all))].Key)
			}
		}
		list, known := ix.candidates(r.Role, r.Model)
		if !known {
			continue
		}
		among, l := s.filter.admitted(ix, list, &r)
		var got []int
		for i := range among.Len() {
			got = append(got, among.Index(i))
		}
		want := admittedOneByOne(s, ix, list, &r)
		require.True(t, slices.Equal(got, want),
			"round %d: admitted %v, want %v; %+v of %d", round, got, want, r, len(list.items))
		switch {
		case l == nil:
			seen["the whole list"]++
		case len(want) == 0:
			seen["none"]++
		default:
			seen["some"]++
		}
		if l == nil && among.Narrowed() || l == nil && len(want) != len(list.items) {
			t.Fatalf("round %d: the whole list was returned for a part", round)
		}
	}
	for what, n := range seen {
		assert.GreaterOrEqual(t, n, 100, "%s: only %d times", what, n)
	}
	assert.Len(t, seen, 3, "seen")
}
