package instance_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// randomEntry returns a random entry. There are few keys and
// revisions, so that entries coincide in every way.
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

// same reports whether two snapshots have the same entries in the same order.
func same(a, b *instance.Snapshot) bool {
	return slices.Equal(a.All(), b.All()) && slices.Equal(a.Usable(instance.Prefill), b.Usable(instance.Prefill)) &&
		slices.Equal(a.Usable(instance.Decode), b.Usable(instance.Decode)) && a.Usable("both") == nil
}

func show(all []*instance.Instance) (out []string) {
	for _, in := range all {
		out = append(out, fmt.Sprintf("%s %s %d", in.Key, in.View, in.CreateRevision))
	}
	return out
}

// Changes reports exactly the differences that turn one snapshot into the other.
func TestChanges_TransformSnapshot(t *testing.T) {
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
		became := slices.Clone(before.All())
		instance.Changes(before, after, func(was, is *instance.Instance) {
			switch {
			case was == is, was != nil && is != nil && was.Key != is.Key:
				t.Fatalf("%+v became %+v", was, is)
			case was != nil && is != nil && (was.View == instance.Pending) != (is.View == instance.Pending):
				t.Fatalf("a pending add and a membership are two things: %+v, %+v", was, is)
			case was != nil && !slices.Contains(before.All(), was), is != nil && !slices.Contains(after.All(), is):
				t.Fatalf("%+v, %+v: from nowhere", was, is)
			}
			became = slices.DeleteFunc(became, func(in *instance.Instance) bool { return in == was })
			if is != nil {
				became = append(became, is)
			}
		})
		if got := instance.NewSnapshot(1, became); !same(got, after) {
			t.Fatalf("before:\n%v\nwith the changes:\n%v\nafter:\n%v", show(before.All()), show(got.All()), show(after.All()))
		}
	}
	instance.Changes(nil, nil, func(_, _ *instance.Instance) { t.Error("nothing differs from nothing") })
	n := 0
	s := random(nil)
	instance.Changes(nil, s, func(was, _ *instance.Instance) { n++ })
	instance.Changes(s, nil, func(_, is *instance.Instance) { n++ })
	assert.Equal(t, 2*len(s.All()), n, "%d changes for %d entries that came and went", n, len(s.All()))
}
