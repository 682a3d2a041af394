package sched

import (
	"context"
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// waits is a leg that notes why it is called off.
type waits struct{ cause error }

func (w *waits) CallOff(cause error) { w.cause = cause }
func (*waits) Silent(time.Duration)  {}

// Whoever looks at a change is late at times: a leg to an instance that has come back
// meanwhile is not called off for its having been away.
func TestLateLookCallsNobodyOff(t *testing.T) {
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
	if err != nil {
		t.Fatal(err)
	}
	leg := &waits{}
	pick.Await(leg, time.Now())
	s.Legs.cancelGone(first, away)
	if leg.cause != nil {
		t.Errorf("called off: %v", leg.cause)
	}
	src.s = instance.NewSnapshot(4, nil)
	s.Legs.cancelGone(away, instance.NewSnapshot(3, []*instance.Instance{in("second")}))
	s.Legs.cancelGone(instance.NewSnapshot(3, []*instance.Instance{in("second")}), src.s)
	if leg.cause == nil {
		t.Error("its instance is gone, and it waits")
	}
}

// What changed before anybody looked calls legs off, too: a proxy that has just begun may
// pick before Run has looked for the first time.
func TestChangeBeforeTheFirstLook(t *testing.T) {
	t.Parallel()
	in := &instance.Instance{
		Key: instance.Key{Role: instance.Decode, Address: "d:1"}, Verified: true,
		Record: instance.Record{Models: []string{"m"}, State: instance.Ready, Connector: "plain"},
	}
	src := &fixed{instance.NewSnapshot(1, []*instance.Instance{in})}
	s := schedulerOf(src)
	pick, err := s.Pick(Request{Role: instance.Decode})
	if err != nil {
		t.Fatal(err)
	}
	leg := &waits{}
	pick.Await(leg, time.Now())
	src.s = instance.NewSnapshot(2, nil)
	ended, end := context.WithCancel(t.Context())
	end()
	s.Legs.Run(ended)
	if leg.cause == nil {
		t.Error("its instance is gone, and it waits")
	}
}
