package sched

import (
	"context"
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
	in := func(id string) *instance.Instance {
		return &instance.Instance{
			Key: instance.Key{Role: instance.Decode, Address: "d:1"}, Verified: true,
			Record: instance.Record{ID: id, Models: []string{"m"}, State: instance.Ready, Connector: "plain"},
		}
	}
	first := instance.NewSnapshot(1, []*instance.Instance{in("first")})
	away := instance.NewSnapshot(2, nil)
	src := &fixed{instance.NewSnapshot(3, []*instance.Instance{in("second")})}
	s := schedulerOf(src)
	pick, err := s.Pick(Request{Role: instance.Decode})
	require.NoError(t, err)
	leg := &waitingLeg{}
	pick.Await(leg, time.Now())
	s.Legs.cancelRemoved(first, away)
	assert.NoError(t, leg.cause, "called off")
	src.s = instance.NewSnapshot(4, nil)
	s.Legs.cancelRemoved(away, instance.NewSnapshot(3, []*instance.Instance{in("second")}))
	s.Legs.cancelRemoved(instance.NewSnapshot(3, []*instance.Instance{in("second")}), src.s)
	assert.Error(t, leg.cause, "its instance left, and it still waits")
}

// A change before the first check calls legs off, too: a proxy
// that has just started may pick before Run has begun.
func TestLegs_ChangeBeforeFirstCheck(t *testing.T) {
	t.Parallel()
	in := &instance.Instance{
		Key: instance.Key{Role: instance.Decode, Address: "d:1"}, Verified: true,
		Record: instance.Record{Models: []string{"m"}, State: instance.Ready, Connector: "plain"},
	}
	src := &fixed{instance.NewSnapshot(1, []*instance.Instance{in})}
	s := schedulerOf(src)
	pick, err := s.Pick(Request{Role: instance.Decode})
	require.NoError(t, err)
	leg := &waitingLeg{}
	pick.Await(leg, time.Now())
	src.s = instance.NewSnapshot(2, nil)
	ended, end := context.WithCancel(t.Context())
	end()
	s.Legs.Run(ended)
	assert.Error(t, leg.cause, "its instance left, and it still waits")
}
