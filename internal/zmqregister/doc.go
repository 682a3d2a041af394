// Package zmqregister turns the pings of vLLM's MoRI-IO engines into registrations.
//
// Such an engine has no agent: it sends a msgpack map to a ZeroMQ ROUTER every three
// seconds (protocols.md 6.1), in one form up to vLLM 0.19 and in another from 0.20 on.
// For each instance that pings, a Bridge runs what an agent beside the engine would
// run: it asks the engine for its health and models first, registers it under a lease,
// and says "down" when it fails. The pings keep the registration: an instance that has
// sent none for as long as its lease lasts is taken out.
package zmqregister
