// Package fleet runs a whole topology as plain child processes: an etcd of
// several members or one embedded in the first proxy, proxies, simulated engines,
// and an agent for each engine. The demo, the replay and the end-to-end tests use
// it; the product does not.
//
//	Fleet ── Process   one child: log file, Kill, Stop, Done
//	      ├─ Member    a Process that is a member of an etcd cluster
//	      ├─ Proxy     a Process with its addresses and its /status
//	      └─ Node      an engine and its agent
//
// All processes keep their files in one directory and listen on free loopback
// ports. Readiness is probed over HTTP, never assumed after a pause. Close stops
// the last child first; on Linux the kernel kills them if the parent was killed.
package fleet
