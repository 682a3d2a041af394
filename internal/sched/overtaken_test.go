package sched_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched"
)

// stuckLeg is a leg that records whether it is overtaken.
type stuckLeg struct {
	mu sync.Mutex
	by int
}

func (*stuckLeg) CallOff(error)        {}
func (*stuckLeg) Silent(time.Duration) {}

func (l *stuckLeg) Overtaken(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.by = n
}

func (l *stuckLeg) stuck() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.by > 0
}

// A leg counts as overtaken once 20 legs of its instance have begun later and been answered
// earlier. It must also have waited far longer than they did, relative to the request sizes.
func TestLegs_Overtaken(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		others   int
		took     time.Duration // by each of the others
		length   int           // of the body of the leg; others have 1,000
		other    sched.Request // of the others
		earlier  bool          // the others began earlier
		after    time.Duration // time from the leg's start until it counts as stuck; 0: never
		answered bool          // the leg has an answer and still waits
	}{
		{name: "20 later ones", others: 20, took: 100 * time.Millisecond, after: 5 * time.Second},
		{name: "19 later ones", others: 19, took: 100 * time.Millisecond},
		{name: "20 earlier ones", others: 20, took: 100 * time.Millisecond, earlier: true},
		{name: "slow ones", others: 20, took: 10 * time.Second, after: 40 * time.Second},
		{name: "a long prompt", others: 20, took: 500 * time.Millisecond, length: 30_000, after: 60 * time.Second},
		{name: "prefills of the same engine", others: 20, took: 100 * time.Millisecond, other: sched.Request{Role: instance.Prefill, Model: "m", Unpaired: true}},
		{name: "another rank", others: 20, took: 100 * time.Millisecond, other: sched.Request{Role: instance.Decode, Model: "m", Ranked: true, Rank: 1}},
		{name: "answered", others: 20, took: 100 * time.Millisecond, answered: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				two := func(in *instance.Instance) { in.Record.DPSize = 2 }
				s, _ := build(nil, inst(instance.Decode, "a:1", two), inst(instance.Prefill, "a:1", two))
				ctx, stop := context.WithCancel(t.Context())
				var running sync.WaitGroup
				running.Go(func() { s.Legs.Run(ctx) })
				begin := func(r sched.Request, l sched.Leg) *sched.Assignment {
					a := pick(t, s, r)
					a.Await(l, time.Now())
					return a
				}
				slow := &stuckLeg{}
				slowRequest := sched.Request{Role: instance.Decode, Model: "m", Ranked: true, Length: max(c.length, 1000)}
				other := c.other
				if other.Role == "" {
					other = slowRequest
				}
				other.Length = 1000
				var one *sched.Assignment
				var others []*sched.Assignment
				if !c.earlier {
					one = begin(slowRequest, slow)
				}
				for range c.others {
					others = append(others, begin(other, &stuckLeg{}))
				}
				if c.earlier {
					one = begin(slowRequest, slow)
				}
				begun := time.Now()
				time.Sleep(c.took)
				if c.answered {
					one.Answered()
				}
				for _, a := range others {
					a.Answered()
					a.EndAwait()
				}
				const tick = time.Second / 5
				if c.after > 0 {
					time.Sleep(time.Until(begun.Add(c.after - tick)))
					assert.False(t, slow.stuck(), "overtaken before %s", c.after)
					time.Sleep(2 * tick)
				} else {
					time.Sleep(time.Hour)
				}
				assert.Equal(t, c.after > 0, slow.stuck(), "stuck")
				stop()
				running.Wait()
				for _, a := range append(others, one) {
					a.EndAwait()
					a.Done()
				}
			})
		})
	}
}

// A second call of Await begins a new wait.
func TestAssignment_AwaitAgain(t *testing.T) {
	t.Parallel()
	s, _ := build(nil, inst(instance.Decode, "a:1"))
	var list []*sched.Assignment
	for range 3 {
		a := pick(t, s, decode("m"))
		a.Await(&waitingLeg{}, time.Now())
		list = append(list, a)
	}
	again := &waitingLeg{}
	list[1].Await(again, time.Now())
	list[0].EndAwait()
	list[2].EndAwait()
	s.Legs.Abandon(list[1].Instance.Key, true, "it is dead")
	assert.Error(t, again.cause, "the second leg was not called off")
	for _, a := range list {
		a.EndAwait()
		a.Done()
	}
}
