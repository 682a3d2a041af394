package sched_test

import (
	"errors"
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched"
)

type calledOff struct{ cause error }

func (c *calledOff) CallOff(cause error) { c.cause = cause }
func (*calledOff) Silent(time.Duration)  {}

// Who settles a leg learns whether anybody may still have it in hand.
func TestSettleTellsWhetherTheLegWasHandedOut(t *testing.T) {
	t.Parallel()
	s, _ := build(nil, inst(instance.Decode, "a:1"), inst(instance.Decode, "b:1"))
	pick := func() *sched.Assignment {
		t.Helper()
		p, err := s.Pick(sched.Request{Role: instance.Decode, Model: "m"})
		if err != nil {
			t.Fatal(err)
		}
		if n := s.InFlight(p.Instance.Key); n != 1 {
			t.Fatalf("%d in flight", n)
		}
		return p
	}
	p := pick()
	p.Await(&calledOff{}, time.Now())
	for range 2 {
		if !p.Settle() {
			t.Fatal("somebody is said to have the leg")
		}
	}
	p.Done()
	p.Done()
	if n := s.InFlight(p.Instance.Key); n != 0 {
		t.Fatalf("%d in flight after the end", n)
	}
	p, leg := pick(), &calledOff{}
	p.Await(leg, time.Now())
	s.Abandon(p.Instance.Key, true, "it is dead")
	if !errors.Is(leg.cause, sched.ErrGone) {
		t.Fatalf("called off with %v", leg.cause)
	}
	for range 2 {
		if p.Settle() {
			t.Fatal("the leg was handed out, and nobody is said to have it")
		}
	}
	p.Done()
}

// Who only looks how long legs have waited holds on to none of them.
func TestSilenceHandsOutNoLeg(t *testing.T) {
	t.Parallel()
	src := &source{}
	src.set(inst(instance.Decode, "a:1"))
	asked := make(chan *instance.Instance, 1)
	s := sched.New(sched.Options{Source: src, Health: sick{}, Connector: func(*instance.Instance) string { return "plain" }, SilentAfter: 30 * time.Millisecond,
		Silent: func(in *instance.Instance) {
			select {
			case asked <- in:
			default:
			}
		}})
	go s.Run(t.Context())
	p, err := s.Pick(sched.Request{Role: instance.Decode, Model: "m"})
	if err != nil {
		t.Fatal(err)
	}
	p.Await(&calledOff{}, time.Now())
	if in := <-asked; in != p.Instance {
		t.Fatalf("asked about %v", in)
	}
	if !p.Settle() {
		t.Error("the leg was handed out")
	}
	p.Done()
}
