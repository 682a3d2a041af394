package instance_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// randomEntry returns a random entry; few keys and revisions, so that entries
// meet in every way.
func randomEntry(rng *rand.Rand) *instance.Instance {
	in := &instance.Instance{
		Key:            instance.Key{Role: instance.Roles()[rng.IntN(2)], Address: fmt.Sprintf("10.0.0.%d:1", rng.IntN(12))},
		Verified:       rng.IntN(4) > 0,
		Record:         instance.Record{State: []instance.State{instance.Ready, instance.Ready, instance.Down}[rng.IntN(3)]},
		View:           []instance.View{"", "", instance.Orphan, instance.Rejected, instance.Pending}[rng.IntN(5)],
		CreateRevision: int64(rng.IntN(3)),
	}
	return in
}

// same reports whether two snapshots hold the same entries in the same order.
func same(a, b *instance.Snapshot) bool {
	return slices.Equal(a.All(), b.All()) && slices.Equal(a.Usable(instance.Prefill), b.Usable(instance.Prefill)) &&
		slices.Equal(a.Usable(instance.Decode), b.Usable(instance.Decode)) && a.Usable("both") == nil
}

// frozen is what a snapshot held when it was made.
type frozen struct {
	s                    *instance.Snapshot
	all, prefill, decode []*instance.Instance
}

func freeze(s *instance.Snapshot) frozen {
	return frozen{s, slices.Clone(s.All()), slices.Clone(s.Usable(instance.Prefill)), slices.Clone(s.Usable(instance.Decode))}
}

func (f frozen) changed() bool {
	return !slices.Equal(f.all, f.s.All()) || !slices.Equal(f.prefill, f.s.Usable(instance.Prefill)) ||
		!slices.Equal(f.decode, f.s.Usable(instance.Decode))
}

// A draft that was changed step by step yields the same as one that is made of the same entries
// at once, and what it gave out before does not change.
func TestDraftEqualsNewSnapshot(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(5, 6))
	for range 60 {
		var d instance.Draft
		here := map[instance.Key]map[bool]*instance.Instance{} // one membership and one pending add of each key
		var given []frozen
		for range 150 {
			is := randomEntry(rng)
			pending := is.View == instance.Pending
			if here[is.Key] == nil {
				here[is.Key] = map[bool]*instance.Instance{}
			}
			was := here[is.Key][pending]
			switch {
			case rng.IntN(3) == 0:
				d.Replace(was, nil)
				delete(here[is.Key], pending)
			default:
				d.Replace(was, is)
				here[is.Key][pending] = is
			}
			if rng.IntN(4) == 0 {
				d.Replace(randomEntry(rng), nil) // like one that is there, perhaps
			}
			if rng.IntN(2) == 0 {
				continue // several changes for one snapshot
			}
			var all []*instance.Instance
			for _, two := range here {
				for _, in := range two {
					all = append(all, in)
				}
			}
			got, want := d.Snapshot(9), instance.NewSnapshot(9, all)
			if got.Revision != 9 || !same(got, want) {
				t.Fatalf("after changes:\n%v\nmade at once:\n%v", show(got.All()), show(want.All()))
			}
			given = append(given, freeze(got))
		}
		for i, f := range given {
			if f.changed() {
				t.Fatalf("snapshot %d has changed since it was given out", i)
			}
		}
	}
}

func show(all []*instance.Instance) (out []string) {
	for _, in := range all {
		out = append(out, fmt.Sprintf("%s %s %d", in.Key, in.View, in.CreateRevision))
	}
	return out
}

// What nothing has changed is the same memory in the next snapshot.
func TestDraftSharesWhatIsUnchanged(t *testing.T) {
	t.Parallel()
	var d instance.Draft
	decode := &instance.Instance{Key: instance.Key{Role: instance.Decode, Address: "a:1"}, Verified: true, Record: instance.Record{State: instance.Ready}}
	d.Replace(nil, decode)
	first := d.Snapshot(1)
	second := d.Snapshot(2)
	if &first.All()[0] != &second.All()[0] {
		t.Error("two snapshots without a change between them share nothing")
	}
	d.Replace(nil, &instance.Instance{Key: instance.Key{Role: instance.Prefill, Address: "a:1"}, Verified: true, Record: instance.Record{State: instance.Ready}})
	third := d.Snapshot(3)
	if len(third.All()) != 2 || len(first.All()) != 1 {
		t.Fatalf("%d and %d entries", len(third.All()), len(first.All()))
	}
	if &first.Usable(instance.Decode)[0] != &third.Usable(instance.Decode)[0] {
		t.Error("a change of one role copied the other")
	}
}

// The changes between two snapshots are exactly what makes the one of the other.
func TestChangesLeadFromOneToTheOther(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(7, 8))
	random := func(from []*instance.Instance) *instance.Snapshot {
		here := map[string]*instance.Instance{}
		place := func(in *instance.Instance) string { return fmt.Sprint(in.Key, in.View == instance.Pending) }
		for _, in := range from {
			if rng.IntN(4) > 0 {
				here[place(in)] = in
			}
		}
		for range rng.IntN(10) {
			in := randomEntry(rng)
			here[place(in)] = in
		}
		var all []*instance.Instance
		for _, in := range here {
			all = append(all, in)
		}
		return instance.NewSnapshot(1, all)
	}
	for range 2000 {
		before := random(nil)
		after := random(before.All())
		var d instance.Draft
		d.Reset(slices.Clone(before.All()))
		instance.Changes(before, after, func(was, is *instance.Instance) {
			switch {
			case was == is, was != nil && is != nil && was.Key != is.Key:
				t.Fatalf("%+v became %+v", was, is)
			case was != nil && is != nil && (was.View == instance.Pending) != (is.View == instance.Pending):
				t.Fatalf("a pending add and a membership are two things: %+v, %+v", was, is)
			case was != nil && !slices.Contains(before.All(), was), is != nil && !slices.Contains(after.All(), is):
				t.Fatalf("%+v, %+v: from nowhere", was, is)
			}
			d.Replace(was, is)
		})
		if got := d.Snapshot(1); !same(got, after) {
			t.Fatalf("before:\n%v\nwith the changes:\n%v\nafter:\n%v", show(before.All()), show(got.All()), show(after.All()))
		}
	}
	instance.Changes(nil, nil, func(_, _ *instance.Instance) { t.Error("nothing differs from nothing") })
	n := 0
	s := random(nil)
	instance.Changes(nil, s, func(was, _ *instance.Instance) { n++ })
	instance.Changes(s, nil, func(_, is *instance.Instance) { n++ })
	if n != 2*len(s.All()) {
		t.Errorf("%d changes for %d entries that came and went", n, len(s.All()))
	}
}

func BenchmarkDraft(b *testing.B) {
	for _, n := range []int{1000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			all := make([]*instance.Instance, n)
			for i := range all {
				all[i] = &instance.Instance{
					Key:      instance.Key{Role: instance.Roles()[i%2], Address: fmt.Sprintf("10.%d.%d.%d:1", i>>16, i>>8&255, i&255)},
					Verified: true, Record: instance.Record{State: instance.Ready},
				}
			}
			var d instance.Draft
			d.Reset(slices.Clone(all))
			d.Snapshot(1)
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				d.Replace(all[i%n], nil)
				d.Snapshot(1)
				d.Replace(nil, all[i%n])
				d.Snapshot(1)
				i += 7
			}
		})
	}
}
