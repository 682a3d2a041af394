package sched

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// ward is a health that knows who is in trouble, and how.
type ward map[instance.Key]struct{ out, hard bool }

func (w ward) Troubled() []instance.Key {
	var keys []instance.Key
	for k := range w {
		keys = append(keys, k)
	}
	return keys
}
func (w ward) Available(k instance.Key) bool      { return !w[k].out }
func (w ward) Unreachable(k instance.Key) bool    { return w[k].out && w[k].hard }
func (ward) SilentFor(instance.Key) time.Duration { return 0 }
func (w ward) Share(instance.Key) float64         { return 1 }

// Looking at those in trouble alone says of the fleet what looking at everybody
// does, whatever is asked for.
func TestConditionByTheTroubledAlone(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(5, 8))
	short := 0
	for round := range 3000 {
		var all []*instance.Instance
		n := 4 + rng.IntN(120)
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
			if !slices.ContainsFunc(all, func(o *instance.Instance) bool { return o.Key == in.Key }) {
				all = append(all, in)
			}
		}
		sick := ward{}
		for range 1 + rng.IntN(12) {
			k := all[rng.IntN(len(all))].Key
			if rng.IntN(6) == 0 {
				k.Address = "gone" + k.Address
			}
			sick[k] = struct{ out, hard bool }{rng.IntN(4) > 0, rng.IntN(2) == 0}
		}
		src := &fixed{instance.NewSnapshot(1, all)}
		s := New(Options{Source: src, Health: sick, Connector: func(in *instance.Instance) string { return in.Record.Connector }})
		ix := s.current()
		r := Request{Role: instance.Roles()[rng.IntN(2)], Model: []string{"", "m", "n", "o"}[rng.IntN(4)], Alone: rng.IntN(4) == 0}
		if rng.IntN(2) == 0 {
			r.Partner = &Assignment{Connector: []string{"plain", "nixl"}[rng.IntN(2)]}
		}
		if rng.IntN(4) == 0 {
			r.Tried = []instance.Key{all[rng.IntN(len(all))].Key}
		}
		list, known := ix.candidates(r.Role, r.Model)
		if !known {
			continue
		}
		troubled := sick.Troubled()
		if len(troubled) < len(list.items)/fewTroubled && ix.allFit(&r) {
			short++
		}
		reachable, in := s.condition(ix, list, &r, troubled)
		// So many that everybody is looked at.
		wantReachable, wantIn := s.condition(ix, list, &r, slices.Repeat(troubled, len(all)+1))
		if reachable != wantReachable || in != wantIn {
			t.Fatalf("round %d: %d reachable and %d in, want %d and %d; %+v of %d", round, reachable, in, wantReachable, wantIn, r, len(list.items))
		}
	}
	if short < 100 {
		t.Fatalf("the troubled alone were looked at %d times: nothing was shown", short)
	}
}

// BenchmarkTrouble is a pick while one instance is out.
func BenchmarkTrouble(b *testing.B) {
	for _, n := range []int{4, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			all := make([]*instance.Instance, n)
			for i := range all {
				all[i] = &instance.Instance{
					Key:      instance.Key{Role: instance.Roles()[i%2], Address: fmt.Sprintf("10.0.%d.%d:8000", i>>8, i&255)},
					Verified: true, Record: instance.Record{Models: []string{"m"}, State: instance.Ready, Connector: "plain"},
				}
			}
			sick := &one{keys: []instance.Key{all[1].Key}}
			s := New(Options{Source: &fixed{instance.NewSnapshot(1, all)}, Health: sick, Connector: func(in *instance.Instance) string { return in.Record.Connector }})
			b.ReportAllocs()
			for b.Loop() {
				a, err := s.Pick(Request{Role: instance.Decode, Model: "m"})
				if err != nil {
					b.Fatal(err)
				}
				a.Done()
			}
		})
	}
}

// one is out.
type one struct{ keys []instance.Key }

func (o *one) Troubled() []instance.Key           { return o.keys }
func (o *one) Available(k instance.Key) bool      { return k != o.keys[0] }
func (o *one) Unreachable(k instance.Key) bool    { return k == o.keys[0] }
func (*one) SilentFor(instance.Key) time.Duration { return 0 }
func (o *one) Share(instance.Key) float64         { return 1 }
