package sched

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// waitingLeg is a leg that records why it is called off.
type waitingLeg struct{ cause error }

func (w *waitingLeg) CallOff(cause error) { w.cause = cause }
func (*waitingLeg) Overtaken(int)         {}
func (*waitingLeg) Silent(time.Duration)  {}

// Legs.Run may see a change late: a leg to an instance that has left and returned is not called off.
func TestLegs_LateCheckCancelsNothing(t *testing.T) {
	t.Parallel()
	first := instance.NewSnapshot(1, []*instance.Instance{process("first")})
	away := instance.NewSnapshot(2, nil)
	src := &fixed{instance.NewSnapshot(3, []*instance.Instance{process("second")})}
	s := schedulerOf(src)
	pick, err := s.Pick(Request{Role: instance.Decode})
	require.NoError(t, err)
	leg := &waitingLeg{}
	pick.Await(leg, time.Now())
	s.Legs.cancelRemoved(first, away)
	assert.NoError(t, leg.cause, "called off")
	src.s = instance.NewSnapshot(4, nil)
	s.Legs.cancelRemoved(away, instance.NewSnapshot(3, []*instance.Instance{process("second")}))
	s.Legs.cancelRemoved(instance.NewSnapshot(3, []*instance.Instance{process("second")}), src.s)
	assert.Error(t, leg.cause, "its instance left, and it still waits")
}
