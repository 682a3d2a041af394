package sched_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched"
)

// sessions picks once for each of n sessions and returns the instances.
func sessions(t *testing.T, s *sched.Scheduler, n int, tried ...instance.Key) []instance.Key {
	t.Helper()
	out := make([]instance.Key, n)
	for i := range out {
		a := pick(t, s, sched.Request{Role: instance.Decode, Model: "m", Session: fmt.Sprintf("user-%d", i), Tried: tried})
		a.Done()
		out[i] = a.Instance.Key
	}
	return out
}

func fleetOf(n int) []*instance.Instance {
	var list []*instance.Instance
	for i := range n {
		list = append(list, inst(instance.Decode, fmt.Sprintf("10.0.0.%d:8000", i+1)))
	}
	return list
}

func TestSessionStays(t *testing.T) {
	t.Parallel()
	s, src := build(nil, fleetOf(4)...)
	first := sessions(t, s, 400)
	for i, k := range sessions(t, s, 400) {
		require.True(t, k == first[i], "session %d moved from %s to %s", i, first[i], k)
	}
	count := map[instance.Key]int{}
	for _, k := range first {
		count[k]++
	}
	for k, n := range count {
		assert.True(t, n >= 50 && n <= 200, "%s has %d of 400 sessions", k, n)
	}
	assert.Equal(t, 4, len(count), "instances with sessions")
	// Another proxy, which has the instances in another order, picks the same.
	list := fleetOf(4)
	list[0], list[3] = list[3], list[0]
	other, _ := build(nil, list...)
	for i, k := range sessions(t, other, 400) {
		require.True(t, k == first[i], "session %d is on %s here and on %s there", i, first[i], k)
	}
	// Only the sessions of the removed instance move, and they return with it.
	src.set(fleetOf(4)[1:]...)
	left := fleetOf(4)[0].Key
	for i, k := range sessions(t, s, 400) {
		if first[i] != left && k != first[i] {
			t.Errorf("session %d moved from %s to %s without need", i, first[i], k)
		}
		assert.True(t, k != left, "session %d is on %s, which left", i, k)
	}
	src.set(fleetOf(4)...)
	for i, k := range sessions(t, s, 400) {
		assert.True(t, k == first[i], "session %d did not come back to %s", i, first[i])
	}
}

func TestSession_AvoidsEjected(t *testing.T) {
	t.Parallel()
	healthy, _ := build(nil, fleetOf(3)...)
	first := sessions(t, healthy, 60)
	bad := fleetOf(3)[1].Key
	s, _ := build(sick{bad: true}, fleetOf(3)...)
	for i, k := range sessions(t, s, 60) {
		assert.True(t, k != bad, "session %d went to the sick instance", i)
		if first[i] != bad && k != first[i] {
			t.Errorf("session %d moved from %s to %s without need", i, first[i], k)
		}
	}
	// A retry uses another instance although the session is bound.
	for i, k := range sessions(t, healthy, 60, bad) {
		assert.True(t, k != bad, "session %d got the instance that it had tried", i)
	}
	_, err := s.Pick(sched.Request{Role: instance.Decode, Model: "m", Session: "x", Tried: []instance.Key{
		fleetOf(3)[0].Key, fleetOf(3)[1].Key, fleetOf(3)[2].Key,
	}})
	assert.True(t, errors.Is(err, sched.ErrNone), "everybody tried: %v", err)
}

func BenchmarkPickSession(b *testing.B) {
	s, _ := build(nil, fleetOf(100)...)
	b.ReportAllocs()
	for b.Loop() {
		pick(b, s, sched.Request{Role: instance.Decode, Model: "m", Session: "0b6a2c0e-7f0a-4a53-9d6e-1f0f6a4f2f11"}).Done()
	}
}
