// Package agent maintains the registration of one vLLM engine in etcd.
//
//	probing ──► registering ──► serving ⇄ down ──► draining ──► gone
//
// An agent registers an engine once it has answered with the expected model. It keeps probing:
// after three failures in a row it writes "down" under the same lease, after two good probes
// "ready" again. To end, it writes "draining", waits until the engine is idle, and revokes the
// lease. When the engine's process has exited, it writes "down" and revokes the lease at once.
//
// The goroutine of Agent.Run owns the state. The agent passes records to its Registrar and
// does not wait for etcd, so that an etcd outage does not affect it.
package agent
