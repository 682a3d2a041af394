package dashboard

import (
	"strings"
	"sync/atomic"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/forward/relay"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// end is the outcome of a request, as shown on the page.
type end uint8

const (
	served  end = iota
	refused     // client error, or the client disconnected
	failed
	ends
)

func endOf(outcome string) end {
	switch outcome {
	case relay.OutcomeOK:
		return served
	case relay.OutcomeClientError, relay.OutcomeClientGone:
		return refused
	}
	return failed
}

// requests has the counters of request times. The map of instances is replaced as a whole, so that
// no request waits for a lock.
type requests struct {
	ends           [ends]atomic.Uint64
	alone          atomic.Uint64
	input, output  atomic.Uint64 // tokens
	first, between latency
	of             atomic.Pointer[map[instance.Key]*timed]
}

// timed has the times of the requests of one instance.
type timed struct{ first, between latency }

// done counts a request.
func (r *requests) done(e *forward.Entry) {
	end := endOf(e.Outcome)
	r.ends[end].Add(1)
	if e.DecodeOnly != "" {
		r.alone.Add(1)
	}
	r.input.Add(uint64(max(0, e.Input)))
	r.output.Add(uint64(max(0, e.Output)))
	if end != served {
		return
	}
	r.first.add(e.FirstToken)
	r.between.add(e.Gap)
	of := *r.of.Load()
	prefill, decode := e.Began()
	if t := of[keyOf(instance.Decode, decode)]; t != nil {
		t.first.add(e.FirstToken)
		t.between.add(e.Gap)
	}
	if t := of[keyOf(instance.Prefill, prefill)]; t != nil {
		t.first.add(e.FirstToken)
	}
}

// keyOf returns the key of the instance of a target, which may have a rank: address#rank.
func keyOf(role instance.Role, target string) instance.Key {
	address, _, _ := strings.Cut(target, "#")
	return instance.Key{Role: role, Address: address}
}
