// Package zmqregister turns the pings of vLLM's MoRI-IO engines into registrations.
//
// Such an engine has no agent. Every three seconds it sends a msgpack map to a ZeroMQ
// ROUTER (vLLM's kv_connector/v1/moriio/moriio_heartbeat.py). The map has one form up to
// vLLM 0.19, and another form from 0.20 on.
//
// For each engine that sends pings, a Bridge does the work of an agent: it reads the health
// and models of the engine, registers it under a lease, and marks it "down" when it fails. If
// an engine sends no ping for the duration of its lease, the Bridge deletes the registration.
package zmqregister
