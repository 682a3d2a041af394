// Package fleet runs a whole topology as plain child processes: proxies (the
// first with its own embedded etcd), simulated engines, an agent beside each.
// The demo, the replay and the end-to-end tests use it; nothing that serves
// requests does.
//
//	Fleet ── Process   one child: log file, Kill, Stop, Done
//	      ├─ Proxy     a Process with its addresses and its /status
//	      └─ Node      an engine and its agent
//
// Everything lives in one directory and listens on free loopback ports.
// Readiness is asked for over HTTP, never assumed after a pause. Children die
// with the parent: in order through Close, or by the kernel where it is Linux
// and the parent was killed.
package fleet
