// Package scratch holds the bytes that requests need for a while: the bodies of
// clients' requests, with a bound on all of them together, and the events of
// streams on their way through. It reuses byte buffers only, and knows neither
// requests nor engines.
package scratch
