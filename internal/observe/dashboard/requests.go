package dashboard

import (
	"sync/atomic"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// End is the outcome of a request, as shown on the page.
type End uint8

// The ends.
const (
	Served  End = iota
	Refused     // client error, or the client disconnected
	Failed
	ends
)

// Sample is the data of a finished request that the page uses.
type Sample struct {
	Prefill, Decode string // addresses, "" if there was none
	End             End
	Alone           bool          // decode served it without a prefill
	FirstToken      time.Duration // from its arrival; 0 if there was none to see
	BetweenTokens   time.Duration // on average, of a stream
	Input, Output   int           // tokens
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
func (r *requests) done(s *Sample) {
	r.ends[s.End].Add(1)
	if s.Alone {
		r.alone.Add(1)
	}
	r.input.Add(uint64(max(0, s.Input)))
	r.output.Add(uint64(max(0, s.Output)))
	if s.End != Served {
		return
	}
	r.first.add(s.FirstToken)
	r.between.add(s.BetweenTokens)
	of := *r.of.Load()
	if t := of[instance.Key{Role: instance.Decode, Address: s.Decode}]; t != nil {
		t.first.add(s.FirstToken)
		t.between.add(s.BetweenTokens)
	}
	if s.Prefill == "" {
		return
	}
	if t := of[instance.Key{Role: instance.Prefill, Address: s.Prefill}]; t != nil {
		t.first.add(s.FirstToken)
	}
}
