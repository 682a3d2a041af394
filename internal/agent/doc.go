// Package agent maintains the registration of one vLLM engine in etcd.
//
//	probing ──► registering ──► serving ⇄ down ──► draining ──► gone
//
// An agent registers an engine once it has answered with the expected model. It keeps
// probing: three failures in a row put "down" under the same lease, two good probes put "ready"
// again. To end, it puts "draining", waits until the engine is idle, and revokes. When the
// engine's process has exited it puts "down" and revokes at once.
//
// The goroutine of Agent.Run owns the state. The agent passes records to its Registrar and
// does not wait for etcd, so that an etcd outage does not affect it.
package agent
