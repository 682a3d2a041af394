// Package loadgen is a load generator. It sends requests, reads the streamed answers,
// checks every byte of them, and records the times.
//
//	trace ── Entry ──┐
//	                 ├─ OpenLoop ── Client.Stream ── Result
//	schedule ────────┘                   └─ Histogram
//
// An answer is correct if its text, token counts, finish reason, usage and end are
// exactly as expected.
package loadgen
