package sched_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
)

// elsewhereCounts returns the number of a role's picks outside the preferred instance or zone, by reason.
func elsewhereCounts(s *sched.Scheduler, of instance.Role) map[string]uint64 {
	got := map[string]uint64{}
	s.Tally.Elsewhere.Each(func(role instance.Role, reason string, n uint64) {
		if role == of && n > 0 {
			got[reason] = n
		}
	})
	return got
}

// While the instance of a session has more than twice the average in flight, one other
// instance, always the same, serves the session. Afterwards, the first one does again.
func TestSession_LeavesOverloaded(t *testing.T) {
	t.Parallel()
	s, _ := chosenBy(t, policy.Session, nil, false, fleetOf(4)...)
	pick := func(session string) *sched.Assignment {
		t.Helper()
		a := pick(t, s, sched.Request{Role: instance.Decode, Model: "m", Session: session})
		return a
	}
	const one = "one"
	var held []*sched.Assignment
	for range 9 { // up to 8 are never an overload, even if the others are idle
		held = append(held, pick(one))
	}
	home := held[0].Instance
	for i, a := range held {
		require.True(t, a.Instance == home && a.Elsewhere == "",
			"request %d went to %s: %q", i, a.Instance.Key, a.Elsewhere)
	}
	next := pick(one)
	if next.Instance == home || next.Elsewhere != "session_overloaded("+home.Address+")" || next.Policy != policy.Session {
		t.Errorf("with 9 of 9 in flight it went to %s by %s: %q", next.Instance.Key, next.Policy, next.Elsewhere)
	}
	again := pick(one)
	assert.Same(t, next.Instance, again.Instance, "then to %s and to %s", next.Instance.Key, again.Instance.Key)
	got := elsewhereCounts(s, instance.Decode)
	assert.True(t, got["session_overloaded"] == 2 && len(got) == 1, "counted: %v", got)
	for _, a := range held[:2] {
		a.Done()
	}
	if back := pick(one); back.Instance != home || back.Elsewhere != "" {
		t.Errorf("with 7 it went to %s: %q", back.Instance.Key, back.Elsewhere)
	}
	// The load of other proxies on that instance counts, too, and
	// their load on other instances is part of the mean.
	s.Loads.SetOthers(map[string]instance.OthersLoad{home.Address: {InFlight: 6}})
	if a := pick(one); a.Instance == home {
		t.Error("others have it overloaded")
	}
	others := map[string]instance.OthersLoad{}
	for _, in := range fleetOf(4) {
		others[in.Address] = instance.OthersLoad{InFlight: 6}
	}
	s.Loads.SetOthers(others)
	if a := pick(one); a.Instance != home {
		t.Error("others have all of them loaded")
	}
}

// An instance with three times the weight may have three times as much in flight.
func TestSessionBoundIsByWeight(t *testing.T) {
	t.Parallel()
	heavy := inst(instance.Decode, "h:1", weighing(600))
	s, _ := chosenBy(t, policy.Session, nil, false, heavy, inst(instance.Decode, "l:1"), inst(instance.Decode, "l:2"), inst(instance.Decode, "l:3"))
	var session string
	for i := 0; ; i++ {
		session = fmt.Sprint("s", i)
		a := pick(t, s, sched.Request{Role: instance.Decode, Model: "m", Session: session})
		a.Done()
		if a.Instance == heavy {
			break
		}
	}
	for range 40 { // all requests in flight: 1.5 times the mean for its weight
		a, err := s.Pick(sched.Request{Role: instance.Decode, Model: "m", Session: session})
		require.True(t, err == nil && a.Instance == heavy, "%v: %v", a.Instance.Key, err)
	}
}

// With --client-bound, the header decides for requests that have
// it, and the policy of the role for other requests.
func TestBindingBeforePrefix(t *testing.T) {
	t.Parallel()
	s, _ := chosenBy(t, policy.DefaultPrefill, nil, true, fleetOf(4)...)
	prompt := []byte(strings.Repeat("the same text ", 100))
	of := func(session string) (address, by string) {
		a := pick(t, s, sched.Request{Role: instance.Decode, Model: "m", Session: session, Prompt: prompt})
		a.Done()
		return a.Instance.Address, a.Policy
	}
	plain, by := of("")
	assert.Equal(t, policy.DefaultPrefill, by, "without a session %s chose", by)
	homes := map[string]bool{}
	for i := range 20 {
		home, by := of(fmt.Sprint("session-", i))
		assert.Equal(t, policy.Session, by, "with one %s chose", by)
		homes[home] = true
		if again, _ := of(fmt.Sprint("session-", i)); again != home {
			t.Errorf("%s, then %s", home, again)
		}
		if still, _ := of(""); still != plain {
			t.Errorf("without one: %s, then %s", plain, still)
		}
	}
	assert.GreaterOrEqual(t, len(homes), 2, "all sessions are on %v: the prompt decided", homes)
}
