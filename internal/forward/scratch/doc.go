// Package scratch has the buffers that requests need for a while: for the bodies of
// clients' requests, with a bound on all of them together, and for the events of streams
// on their way through. It pools byte buffers only, and knows neither requests nor
// engines.
package scratch
