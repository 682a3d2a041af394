// Package stage notes when one request passed the points of its way, and how long the
// stages between them took: for metrics, for the header X-PD-Timing, and for traces.
package stage

import (
	"cmp"
	"sync/atomic"
	"time"
)

// Point is a point of a request's way.
type Point int

// The points, in the order in which a request passes them whose prefill comes before its
// decode. Of several attempts the last one counts, except for Sent and Computed.
const (
	Sent      Point = iota // the first leg began: until then the request was read and waited
	Prefill                // the prefill leg began
	Prefilled              // prefill has answered
	Decode                 // the decode leg began
	First                  // the first content of a stream went to the client
	Computed               // prefill has answered in any attempt
	Refused                // the last leg was refused before any prefill has answered
	points
)

// Times are when a request passed its points. Its legs may run at once: it is safe for
// concurrent use.
type Times struct {
	Start time.Time // the request's arrival
	at    [points]atomic.Int64
}

// Pass notes that a point is passed now.
func (t *Times) Pass(p Point) { t.PassAt(p, time.Now()) }

// PassAt notes when a point was passed.
func (t *Times) PassAt(p Point, now time.Time) {
	t.at[p].Store(max(int64(now.Sub(t.Start)), 1))
}

// At is when a point was passed, from Start; 0 if it was not.
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

// Stages are the durations of the parts of a request. They are consecutive, and their sum is
// the time from Times.Start to the call of Times.Stages. 0 is a stage that the request did
// not have.
type Stages struct {
	Queue    time.Duration // until the first leg began: reading the body, waiting, picking
	Retry    time.Duration // attempts that failed
	Prefill  time.Duration // until prefill has answered; decode-only, until the first content of a stream
	Handover time.Duration // from prefill's answer to the first content of a stream, by which decode shows that it has the KV cache
	Decode   time.Duration // from the first content; of a whole answer, from prefill's answer
}

// Stages returns the stages up to now, which is counted from Start. A stream that has no
// content yet is in its KV transfer, or in its prefill. Of a whole answer the first token is
// not seen: it is in decode as soon as prefill has answered.
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
