// Package load is the load generator of the benchmark. It speaks HTTP/1.1 over
// plain connections, one goroutine per connection, and compares every answer
// with the right one to the last byte while it arrives.
//
//	Plan ── Start ──▶ Generator ── workers ── exchange ── answer.StreamCheck
//	                      │                       `────── Tally (TTFT, ITL, total)
//	                      ├─ Swap      counters since the last Swap
//	                      ├─ Vanish    every client leaves at once
//	                      `─ Stop      end what runs, or cut it
//
// A closed loop sends the next request when the last is answered; an open loop
// sends at times that a seed decides, whatever became of the earlier ones, and
// counts from the time at which a request should have been sent.
package load
