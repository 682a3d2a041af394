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

// A pick is put where its caller wants it, whatever stood there, and the caller
// learns whether anybody may still have the leg in hand.
func TestPickIntoMemoryOfTheCaller(t *testing.T) {
	t.Parallel()
	a, b := inst(instance.Decode, "a:1"), inst(instance.Decode, "b:1")
	s, _ := build(nil, a, b)
	var into sched.Assignment
	pick := func() *sched.Assignment {
		t.Helper()
		got, err := s.Pick(sched.Request{Role: instance.Decode, Model: "m", Into: &into})
		if err != nil {
			t.Fatal(err)
		}
		if got != &into {
			t.Fatal("it was put elsewhere")
		}
		return got
	}
	for range 3 {
		p := pick()
		if n := s.InFlight(p.Instance.Key); n != 1 {
			t.Fatalf("%d in flight", n)
		}
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
	if p = pick(); !p.Settle() {
		t.Fatal("the next pick inherits it")
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
