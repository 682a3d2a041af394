package sched_test

import (
	"errors"
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched"
)

// calledOff is a leg that records why it is called off.
type calledOff struct{ cause error }

func (c *calledOff) CallOff(cause error) { c.cause = cause }
func (*calledOff) Overtaken(int)         {}
func (*calledOff) Silent(time.Duration)  {}

// A leg is called off while it waits, but not after EndAwait.
func TestEndAwait(t *testing.T) {
	t.Parallel()
	s, _ := build(nil, inst(instance.Decode, "a:1"), inst(instance.Decode, "b:1"))
	for _, ended := range []bool{true, false} {
		p := pick(t, s, decode("m"))
		leg := &calledOff{}
		p.Await(leg, time.Now())
		if ended {
			p.EndAwait()
			p.EndAwait()
		}
		s.Legs.Abandon(p.Instance.Key, true, "it is dead")
		if errors.Is(leg.cause, sched.ErrRemoved) == ended {
			t.Errorf("ended %t: called off with %v", ended, leg.cause)
		}
		p.EndAwait()
		if n := s.InFlight(p.Instance.Key); n != 1 {
			t.Errorf("%d in flight", n)
		}
		p.Done()
		p.Done()
		if n := s.InFlight(p.Instance.Key); n != 0 {
			t.Errorf("%d in flight after the end", n)
		}
	}
}
