// Package scratch has temporary buffers: for the bodies of clients' requests, with a bound
// on all of them together, and for the events of streams that are relayed. It pools only
// byte buffers, and depends neither on requests nor on engines.
package scratch
