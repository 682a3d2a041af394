package policy

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// bound returns the index of the candidate that each of n sessions is bound to.
func bound(c Candidates, n int) []int {
	of := make([]int, n)
	for i := range of {
		at, _ := session{}.Choose(c, Request{Session: fmt.Sprintf("user-%d", i)})
		of[i] = c.Index(at)
	}
	return of
}

func parts(of []int, n int) []float64 {
	got := make([]float64, n)
	for _, i := range of {
		got[i] += 100 / float64(len(of))
	}
	return got
}

func TestSession_Missing(t *testing.T) {
	t.Parallel()
	if i, _ := newSession(Options{}).Choose(All(fleet(1, 1)), Request{}); i != -1 {
		t.Errorf("without a session it chose %d", i)
	}
}

func TestSessionsByWeight(t *testing.T) {
	t.Parallel()
	const keys = 10_000
	near(t, "3:1", parts(bound(All(fleet(300, 100)), keys), 2), 3, 75, 25)
	near(t, "even", parts(bound(All(fleet(8, 8, 8, 8)), keys), 4), 3, 25, 25, 25, 25)
	near(t, "10:60:30", parts(bound(All(fleet(10, 60, 30)), keys), 3), 3, 10, 60, 30)
}

// Only sessions that must move do.
func TestSessionsStay(t *testing.T) {
	t.Parallel()
	const keys = 2_000
	list := fleet(100, 100, 100, 100)
	before := bound(All(list), keys)
	for i, is := range bound(some(list, true, 0, 1, 3), keys) {
		if before[i] != 2 && is != before[i] {
			t.Fatalf("session %d went from %d to %d although that stayed", i, before[i], is)
		}
	}
	// Doubling all weights moves no session; a candidate whose weight grows only gains sessions.
	for i, is := range bound(All(fleet(200, 200, 200, 200)), keys) {
		require.Equal(t, before[i], is, "session %d went from %d to %d for nothing", i, before[i], is)
	}
	won := 0
	for i, is := range bound(All(fleet(100, 100, 300, 100)), keys) {
		switch is {
		case before[i]:
		case 2:
			won++
		default:
			t.Fatalf("session %d went from %d to %d, and 2 grew", i, before[i], is)
		}
	}
	assert.GreaterOrEqual(t, won, keys/10, "the one that grew won %d of %d", won, keys)
}

// A candidate in slow start gets its sessions at once.
func TestSession_SlowStart(t *testing.T) {
	t.Parallel()
	list := fleet(100, 100, 100)
	c := Some(list, make([]Choice, 0, 3), false)
	for i, share := range []float64{1, 0.1, 1} {
		c.Add(i, list[i].Weight*share)
	}
	before := bound(All(list), 500)
	for i, is := range bound(c, 500) {
		require.Equal(t, before[i], is, "session %d went from %d to %d", i, before[i], is)
	}
}
