// Package agent is the life of the process that is next to one vLLM engine
// and keeps its registration true.
//
//	probing ──► registering ──► serving ⇄ down ──► draining ──► gone
//
// It never registers an engine that it has not seen answer with the expected
// model. While registered it probes on: three failures in a row put "down"
// under the same lease, two good probes put "ready" again. When it is asked to
// end it puts "draining", waits for the engine to be idle, and revokes. Where it
// is told that the engine's process has ended it says "down" and revokes at once.
//
// One goroutine, Agent.Run, owns all of it. The agent knows no etcd: it says
// what the record should be through its Registrar interface and never waits for
// the answer, so that an etcd outage changes nothing here.
package agent
