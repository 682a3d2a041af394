package instance_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// Whatever the order of its input, a snapshot is sorted and finds each membership, and never a pending add.
func TestSnapshotFindsMembers(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var all []*instance.Instance
		members := map[instance.Key]*instance.Instance{}
		waiting := map[instance.Key]bool{}
		usable := map[instance.Role]int{}
		for i := range rng.IntN(30) {
			k := instance.Key{Role: instance.Roles()[rng.IntN(2)], Address: fmt.Sprintf("10.0.0.%d:1", i)}
			if rng.IntN(3) > 0 {
				in := &instance.Instance{Key: k, Verified: rng.IntN(2) == 0, Record: instance.Record{State: instance.Ready}}
				in.View = []instance.View{"", instance.Orphan, instance.Unverified, instance.Rejected}[rng.IntN(4)]
				members[k] = in
				all = append(all, in)
				if in.Usable() {
					usable[k.Role]++
				}
			}
			if rng.IntN(3) == 0 {
				waiting[k] = true
				all = append(all, &instance.Instance{Key: k, View: instance.Pending})
			}
		}
		rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		given := slices.Clone(all)
		s := instance.NewSnapshot(7, all)
		require.Equal(t, given, all, "the slice of the caller was sorted")
		last := ""
		for _, in := range s.All() {
			order := map[instance.Role]string{instance.Prefill: "1", instance.Decode: "2"}[in.Role] + in.Address
			require.GreaterOrEqual(t, order, last, "%s comes after %s", order, last)
			last = order
			if got, ok := s.Lookup(in.Key); ok != (members[in.Key] != nil) || got != members[in.Key] {
				t.Fatalf("%s: found %+v, want %+v", in.Key, got, members[in.Key])
			}
		}
		for _, r := range instance.Roles() {
			require.Equal(t, usable[r], len(s.Usable(r)), "usable in %s", r)
		}
		in, ok := s.Lookup(instance.Key{Role: instance.Decode, Address: "10.0.0.99:1"})
		require.False(t, ok, "found %+v", in)
	}
}
