// Package zmqregister turns the pings of vLLM's MoRI-IO engines into registrations.
//
// Such an engine has no agent. Every three seconds it sends a msgpack map to a ZeroMQ
// ROUTER (vLLM's kv_connector/v1/moriio/moriio_heartbeat.py). The map has one form up to
// vLLM 0.19, and another form from 0.20 on.
//
// For each engine that sends pings, a Bridge does the work of an agent: it asks the engine
// for its health and models first, registers it under a lease, and marks it "down" when it
// fails. The pings keep the registration. If an engine sends none for the duration of its
// lease, the Bridge deletes the registration.
package zmqregister
