package sched_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

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
		assert.True(t, errors.Is(leg.cause, sched.ErrRemoved) != ended, "ended %t: called off with %v", ended, leg.cause)
		p.EndAwait()
		assert.EqualValues(t, 1, s.InFlight(p.Instance.Key), "in flight")
		p.Done()
		p.Done()
		assert.EqualValues(t, 0, s.InFlight(p.Instance.Key), "in flight after the end")
	}
}
