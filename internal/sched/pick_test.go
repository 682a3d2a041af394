package sched_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

// changingSource returns one snapshot at the first call and another
// one from then on: the membership changes during a pick.
type changingSource struct{ looks []*instance.Snapshot }

func (s *changingSource) Snapshot() *instance.Snapshot {
	snap := s.looks[0]
	if len(s.looks) > 1 {
		s.looks = s.looks[1:]
	}
	return snap
}

// A pick is repeated if its instance was drained meanwhile: once the
// drain is known and nothing is in flight, no request may arrive.
func TestPick_RepeatedWhenDrained(t *testing.T) {
	t.Parallel()
	drained := inst(instance.Decode, "d:1", func(in *instance.Instance) { in.Intent = instance.Drain })
	before := instance.NewSnapshot(1, []*instance.Instance{inst(instance.Decode, "d:1")})
	for _, tc := range []struct {
		name  string
		after *instance.Snapshot
		want  string
	}{
		{"another is left", instance.NewSnapshot(2, []*instance.Instance{drained, inst(instance.Decode, "d:2")}), "d:2"},
		{"none is left", instance.NewSnapshot(2, []*instance.Instance{drained}), ""},
		{"it is still in", instance.NewSnapshot(2, []*instance.Instance{inst(instance.Decode, "d:1")}), "d:1"},
	} {
		s := sched.New(sched.Options{
			Source: &changingSource{looks: []*instance.Snapshot{before, before, tc.after}}, Health: sick{},
			PairKey: members.PairKey,
		})
		a, err := s.Pick(decode("m"))
		switch {
		case tc.want == "" && !errors.Is(err, sched.ErrNone):
			t.Errorf("%s: %v", tc.name, err)
		case tc.want != "" && (err != nil || a.Instance.Address != tc.want):
			t.Errorf("%s: %+v, %v", tc.name, a, err)
		}
		if n := s.InFlight(drained.Key); tc.want != "d:1" && n != 0 {
			t.Errorf("%s: %d in flight on the drained one", tc.name, n)
		}
		picks, want := uint64(0), uint64(1)
		if tc.want == "" {
			want = 0
		}
		s.Tally.Picks.Each(func(_ instance.Role, _ string, n uint64) { picks += n })
		assert.Equal(t, want, picks, "%s: counted %d times, want %d", tc.name, picks, want)
	}
}

// hookedHealth calls a function once during a pick: after the
// pick has loaded its index, and before it is counted.
type hookedHealth struct {
	sick
	once func()
}

func (h *hookedHealth) Troubled() []instance.Key {
	if f := h.once; f != nil {
		h.once = nil
		f()
	}
	return h.sick.Troubled()
}

// A pick is suspended while its instance leaves and returns. It is still counted where a
// drain proof looks, although the counter in its index may have been dropped.
func TestPick_CountedAfterInstanceReturned(t *testing.T) {
	t.Parallel()
	for _, ranks := range []int{1, 2} {
		health := &hookedHealth{}
		in := func() *instance.Instance {
			return inst(instance.Decode, "d:1", func(in *instance.Instance) { in.Record.DPSize = ranks })
		}
		s, src := build(health, in())
		publish := func(list ...*instance.Instance) {
			s.Prepare(instance.NewSnapshot(src.rev+1, list))
			src.set(list...)
		}
		health.once = func() {
			publish()
			publish(in())
		}
		a := pick(t, s, decode("m"))
		assert.EqualValues(t, 1, s.InFlight(a.Instance.Key), "%d ranks: in flight", ranks)
		a.Done()
		assert.EqualValues(t, 0, s.InFlight(a.Instance.Key), "%d ranks: in flight after the end", ranks)
	}
}

// A pick whose instance has left meanwhile does not wait for the index of an unpublished snapshot.
func TestPick_DoesNotWaitForPrepare(t *testing.T) {
	t.Parallel()
	health, src := &hookedHealth{}, &source{}
	building, release := make(chan struct{}), make(chan struct{})
	src.set(inst(instance.Decode, "d:1"))
	s := sched.New(sched.Options{Source: src, Health: health, PairKey: func(in *instance.Instance) connector.PairKey {
		if in.Address == "d:3" {
			close(building)
			<-release
		}
		return members.PairKey(in)
	}})
	prepared := make(chan struct{})
	health.once = func() {
		next := instance.NewSnapshot(2, []*instance.Instance{inst(instance.Decode, "d:2")})
		s.Prepare(next)
		src.p.Store(next)
		go func() {
			defer close(prepared)
			s.Prepare(instance.NewSnapshot(3, []*instance.Instance{inst(instance.Decode, "d:3")}))
		}()
		<-building
	}
	picked := make(chan string, 1)
	go func() {
		a, err := s.Pick(decode("m"))
		picked <- fmt.Sprint(a.Address(), " ", err)
	}()
	select {
	case got := <-picked:
		want := "d:2 <nil>"
		assert.Equal(t, want, got, "picked")
	case <-time.After(10 * time.Second):
		t.Error("the pick waits for an index that it does not need")
	}
	close(release)
	<-prepared
}

// A KV cache that was not fetched pins a prefill instance until
// the cache's lease ends; a fetched one does not.
func TestPinned(t *testing.T) {
	t.Parallel()
	s, _ := build(nil, inst(instance.Prefill, "p:1"), inst(instance.Prefill, "p:2"))
	now := time.Now()
	pick := func() *sched.Assignment {
		t.Helper()
		a := pick(t, s, sched.Request{Role: instance.Prefill, Model: "m", Unpaired: true})
		return a
	}
	fetched, lost := pick(), pick()
	fetched.Done()
	fetched.Unfetched(now.Add(time.Hour))
	lost.Unfetched(now.Add(time.Hour))
	lost.Unfetched(now.Add(time.Minute)) // an earlier end does not replace a later one
	lost.Done()
	require.True(t, lost.Instance != fetched.Instance, "both on one instance")
	restarted := *lost.Instance
	restarted.Record.ID = "restarted"
	for _, tc := range []struct {
		in   *instance.Instance
		at   time.Time
		want bool
	}{
		{fetched.Instance, now, false},
		{lost.Instance, now, true},
		{lost.Instance, now.Add(30 * time.Minute), true},
		{lost.Instance, now.Add(2 * time.Hour), false},
		{inst(instance.Decode, lost.Instance.Address), now, false},
		{&restarted, now, false},
	} {
		if got := s.Loads.Pinned(tc.in, tc.at); got != tc.want {
			t.Errorf("%s after %s: %t", tc.in.Key, tc.at.Sub(now), got)
		}
	}
}

// A leg is called off while it waits, but not after EndAwait.
func TestEndAwait(t *testing.T) {
	t.Parallel()
	s, _ := build(nil, inst(instance.Decode, "a:1"), inst(instance.Decode, "b:1"))
	for _, ended := range []bool{true, false} {
		p := pick(t, s, decode("m"))
		leg := &waitingLeg{}
		p.Await(leg, time.Now())
		if ended {
			p.EndAwait()
			p.EndAwait()
		}
		s.Legs.Abandon(p.Instance.Key, true, "it is dead")
		assert.True(t, errors.Is(leg.cause, sched.ErrRemoved) != ended, "ended %t: called off with %v", ended, leg.cause)
		p.EndAwait()
		assert.EqualValues(t, 1, s.InFlight(p.Instance.Key), "in flight")
		p.Done()
		p.Done()
		assert.EqualValues(t, 0, s.InFlight(p.Instance.Key), "in flight after the end")
	}
}
