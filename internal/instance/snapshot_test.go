package instance_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
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

// publisher publishes snapshots the way a watcher does.
type publisher struct {
	now atomic.Pointer[instance.Snapshot]
}

func newPublisher() *publisher {
	p := &publisher{}
	p.publish(1)
	return p
}

func (p *publisher) publish(revision int64) {
	if old := p.now.Swap(instance.NewSnapshot(revision, nil)); old != nil {
		old.Supersede()
	}
}

func (p *publisher) snapshot() *instance.Snapshot { return p.now.Load() }

func TestFollow_CallsForEachSnapshot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPublisher()
		ctx, cancel := context.WithCancel(t.Context())
		var revisions []int64
		done := make(chan struct{})
		go func() {
			defer close(done)
			var last *instance.Snapshot
			instance.Follow(ctx, p.snapshot, func(prev, next *instance.Snapshot) {
				assert.Same(t, last, prev, "prev, which is the snapshot of the previous call")
				last = next
				revisions = append(revisions, next.Revision)
			})
		}()
		for revision := int64(2); revision <= 5; revision++ {
			synctest.Wait()
			p.publish(revision)
		}
		synctest.Wait()
		cancel()
		<-done
		assert.True(t, len(revisions) == 5 && revisions[0] == 1 && revisions[4] == 5,
			"called for revisions %v, want 1 to 5", revisions)
		p.publish(6)
		assert.Len(t, revisions, 5, "called after Follow has returned")
	})
}

// A snapshot that is published while f runs is observed by the next call, whether f has read it
// or not.
func TestFollow_NeverMissesTheNewest(t *testing.T) {
	t.Parallel()
	p := newPublisher()
	const last = 5000
	go func() {
		for revision := int64(2); revision <= last; revision++ {
			p.publish(revision)
		}
	}()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	seen := int64(0)
	instance.Follow(ctx, p.snapshot, func(_, next *instance.Snapshot) {
		assert.Greater(t, next.Revision, seen, "revision %d after %d", next.Revision, seen)
		if seen = next.Revision; seen == last {
			cancel()
		}
	})
	assert.EqualValues(t, last, seen, "returned at revision")
}

func TestAwait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPublisher()
		at := func(revision int64) func(*instance.Snapshot) bool {
			return func(s *instance.Snapshot) bool { return s.Revision >= revision }
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		assert.True(t, instance.Await(ended, p.snapshot, at(1)), "false for a snapshot that is current")
		assert.False(t, instance.Await(ended, p.snapshot, at(2)), "true although the context has ended")
		met := make(chan bool, 1)
		go func() { met <- instance.Await(t.Context(), p.snapshot, at(3)) }()
		for _, revision := range []int64{2, 3} {
			synctest.Wait()
			assert.Len(t, met, 0, "returned before revision %d", revision)
			p.publish(revision)
		}
		assert.True(t, <-met, "false for revision 3")
	})
}
