// Package discovery is the roof over both ends of the etcd protocol. It holds no code;
// each package below has one concern, and imports only those to its left:
//
//	schema ◀── etcd ◀─┬─ lease ◀─────────┬─ store
//	                  └─ disk ◀─ watch ◀─┘
//	verify ◀───────────────────┘
//
// Package schema says where every key is and what its value means; it knows no etcd. Package
// etcd is a client that survives outages, with deadlines of calls and the guarded read.
// Package lease holds what ends with its holder: the key of an instance, the presence of a
// proxy, the digest of its load. Package disk is the file that outlives a proxy. Package
// verify decides by what instances have answered. Package watch makes immutable snapshots of
// the membership. Package store makes the changes of operators.
//
// The keys, under one root (default /pd/):
//
//	┌──────────────────────────────────────────────────────────┐
//	│ decode/ … override/ pending/ prefill/   │ proxies/ audit/│
//	└──────────────────────────────────────────────────────────┘
//	   ▲ lease.Registrar        │ list at R,       ▲ lease.Presence
//	   ▲ store.Instances, …     ▼ watch from R+1   ▲ store, with each change
//	                         watch.Watcher → table → Snapshot
//
// Nothing in here ends a process or empties the membership because etcd cannot be reached.
// These packages are the only ones, with embedetcd, pdctl and the test kit, that import the
// etcd client.
package discovery
