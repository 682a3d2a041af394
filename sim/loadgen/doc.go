// Package loadgen is the client's side of a load: it sends requests, reads the
// answers as they stream in, checks every one of them to the last byte, and
// keeps the times.
//
//	trace ── Entry ──┐
//	                 ├─ OpenLoop ── Client.Stream ── Result
//	schedule ────────┘                   └─ Histogram
//
// An answer is right when its text, its token counts, its finish reason, its
// usage and its end are exactly what was expected; one that merely looks
// complete is counted as wrong. The reader of event streams allocates nothing
// per token, so that the generator is not what is measured.
package loadgen
