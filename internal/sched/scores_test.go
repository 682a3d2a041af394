package sched_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
)

// token_weighted picks the instance with the fewest bytes in flight. A leg's score is
// subtracted once, when the leg ends. The scores of an engine's two roles are separate.
func TestScores_Released(t *testing.T) {
	t.Parallel()
	s, _ := chosenBy(t, policy.TokenWeighted, nil, false,
		inst(instance.Prefill, "b:1"), inst(instance.Decode, "b:1"), inst(instance.Decode, "d:1"))
	pick := func(role instance.Role, length int) *sched.Assignment {
		a := pick(t, s, sched.Request{Role: role, Model: "m", Length: length, Unpaired: true})
		return a
	}
	p := pick(instance.Prefill, 1000)
	first := pick(instance.Decode, 4000)
	second := pick(instance.Decode, 3000)
	assert.True(t, first.Instance != second.Instance, "both went to %s", first.Instance.Key)
	if third := pick(instance.Decode, 500); third.Instance != second.Instance {
		t.Errorf("4,000 bytes against 3,000: the next went to %s", third.Instance.Key)
	} else {
		third.Done()
	}
	first.Done()
	first.Done()
	if next := pick(instance.Decode, 500); next.Instance != first.Instance {
		t.Errorf("0 bytes against 3,000: the next went to %s", next.Instance.Key)
	} else {
		next.Done()
	}
	second.Done()
	l := s.LoadOf("b:1")
	assert.EqualValues(t, 128_699_500, l.ScoreOf(instance.Prefill).Load(), "prefill scores")
	p.Done()
	for _, address := range []string{"b:1", "d:1"} {
		for _, role := range instance.Roles() {
			assert.EqualValues(t, 0, s.LoadOf(address).ScoreOf(role).Load(), "%s %s: is left", role, address)
		}
	}
}
