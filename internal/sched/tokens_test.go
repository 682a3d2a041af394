package sched

import (
	"testing"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// What a leg adds to the load of an instance is gone when it has ended, whatever it was
// told meanwhile, and the tokens that wait when prefill has answered.
func TestTokensOfALeg(t *testing.T) {
	t.Parallel()
	member := func(role instance.Role, address string) *instance.Instance {
		return &instance.Instance{
			Key: instance.Key{Role: role, Address: address}, Verified: true,
			Record: instance.Record{Models: []string{"m"}, State: instance.Ready, Connector: "plain"},
		}
	}
	src := &fixed{instance.NewSnapshot(1, []*instance.Instance{member(instance.Prefill, "p:1"), member(instance.Decode, "d:1")})}
	s := schedulerOf(src)
	pick := func(r Request) *Assignment {
		t.Helper()
		r.Prompt, r.Head = make([]byte, 3000), [][]byte{make([]byte, 1000)}
		a, err := s.Pick(r)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	holds := func(a *Assignment, inFlight, waiting, held int64) {
		t.Helper()
		l := &a.counter.load
		if l.InFlight.Load() != inFlight || l.Waiting.Load() != waiting || l.Held.Load() != held {
			t.Errorf("%s: %d in flight, %d tokens waiting, %d held; want %d, %d, %d", a.Instance.Key, l.InFlight.Load(), l.Waiting.Load(), l.Held.Load(), inFlight, waiting, held)
		}
	}
	p := pick(Request{Role: instance.Prefill})
	holds(p, 1, 1000, 1000)
	p.Computed(2000)
	holds(p, 1, 0, 1000)
	d := pick(Request{Role: instance.Decode, Partner: p})
	holds(d, 1, 0, 2000) // two bytes make a token, as prefill has told; it has nothing to compute
	alone := pick(Request{Role: instance.Decode})
	holds(alone, 2, 2000, 4000)
	for _, a := range []*Assignment{p, d, alone, alone} {
		a.Done()
		a.Computed(0)
	}
	holds(p, 0, 0, 0)
	holds(d, 0, 0, 0)
}
