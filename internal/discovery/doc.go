// Package discovery is both ends of the etcd protocol: the key layout, the
// values, watching the membership and registering in it.
//
//	            etcd, under one root (default /pd/)
//	┌──────────────────────────────────────────────────────────┐
//	│ decode/ … override/ pending/ prefill/   │ proxies/ audit/│
//	└──────────────────────────────────────────────────────────┘
//	   ▲ Registrar (leased)     │ list at R,       ▲ Presence
//	   ▲ Store (intent, static) ▼ watch from R+1   ▲ Store
//	                         Watcher → table → Snapshot
//
// The Watcher is the only reader that lives long. It follows etcd with one
// list and one ordered watch, and what it publishes are immutable snapshots,
// each made of the one before: the table notes what a change touches.
// Loads follows, on a watch of its own, what the proxies' presences tell of their load.
// The Store makes the writes of operators, each in one transaction with its
// audit entry. The Registrar holds one leased key for an agent, and the
// Presence one for a proxy. Nothing in this package ends a process or empties
// the membership because etcd cannot be reached.
//
// This is the only package, with embedetcd and the test kit, that imports the
// etcd client.
package discovery
