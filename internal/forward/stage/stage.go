// Package stage records when one request passed certain points, and how long the stages
// between them took, for metrics, for the header X-PD-Timing and for traces.
package stage

import (
	"cmp"
	"sync/atomic"
	"time"
)

// Point is a point in the processing of a request.
type Point int

// The points, in the order of a request whose prefill comes before its decode. With several
// attempts, the last one counts, except for Sent and Computed.
const (
	Sent      Point = iota // the first leg began; before, the body was read and the request waited
	Prefill                // the prefill leg began
	Prefilled              // prefill has answered
	Decode                 // the decode leg began
	First                  // the first content of a stream went to the client
	Computed               // prefill has answered in any attempt
	Refused                // the last leg was refused before any prefill has answered
	points
)

// Times are the times at which a request passed its points. They are safe for concurrent
// use, because legs may run at the same time.
type Times struct {
	Start time.Time // the request's arrival
	at    [points]atomic.Int64
}

// Pass records that a point is passed now.
func (t *Times) Pass(p Point) { t.PassAt(p, time.Now()) }

// PassAt records when a point was passed.
func (t *Times) PassAt(p Point, now time.Time) {
	t.at[p].Store(max(int64(now.Sub(t.Start)), 1))
}

// At returns the time from Start to a point; 0 if it was not passed.
func (t *Times) At(p Point) time.Duration { return time.Duration(t.at[p].Load()) }

// BeginPrefill records that a prefill leg has begun. The times of an earlier one are discarded.
func (t *Times) BeginPrefill(now time.Time) {
	t.at[Prefilled].Store(0)
	t.PassAt(Prefill, now)
	t.sent(now)
}

// BeginDecode records that a decode leg, or the only leg of a request, has begun.
func (t *Times) BeginDecode(now time.Time) {
	t.PassAt(Decode, now)
	t.sent(now)
}

func (t *Times) sent(now time.Time) {
	t.at[Refused].Store(0)
	if t.At(Sent) == 0 {
		t.PassAt(Sent, now)
	}
}

// WithoutPrefill records that the request continues without a prefill.
func (t *Times) WithoutPrefill() {
	t.at[Prefill].Store(0)
	t.at[Prefilled].Store(0)
}

// Stages are the durations of the parts of a request. They are consecutive, and their sum is the
// time from Times.Start to the call of Times.Stages. A stage that the request did not have is 0.
type Stages struct {
	Queue    time.Duration // until the first leg began: reading the body, waiting, picking
	Retry    time.Duration // attempts that failed
	Prefill  time.Duration // until prefill has answered; decode-only, until the first content of a stream
	Handover time.Duration // from prefill's answer to the first content of a stream, when decode has the KV cache
	Decode   time.Duration // from the first content; for a whole answer, from prefill's answer
}

// Stages returns the stages up to now, a duration since Start. A stream without content is
// in its KV transfer or its prefill. The first token of a whole answer is not visible: its
// decode begins when prefill has answered.
func (t *Times) Stages(now time.Duration, stream bool) Stages {
	sent := t.At(Sent)
	if sent == 0 {
		return Stages{Queue: now}
	}
	begun, pair := t.At(Prefill), true
	if begun == 0 {
		begun, pair = max(t.At(Decode), sent), false
	}
	s := Stages{Queue: sent, Retry: begun - sent}
	first := cmp.Or(t.At(First), now)
	prefilled := t.At(Prefilled)
	switch {
	case !pair && stream:
		s.Prefill, s.Decode = first-begun, now-first
	case !pair:
		s.Decode = now - begun
	case prefilled == 0 || prefilled > first: // both legs run at once, and decode answered first
		s.Prefill, s.Decode = first-begun, now-first
	case stream:
		s.Prefill, s.Handover, s.Decode = prefilled-begun, first-prefilled, now-first
	default:
		s.Prefill, s.Decode = prefilled-begun, now-prefilled
	}
	return s
}
