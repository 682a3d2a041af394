// Package discovery documents the packages of the etcd protocol below it and has no code. Each of
// them imports only packages to its left:
//
//	schema ◀── etcd ◀─┬─ lease ◀─────────┬─ store
//	                  └─ disk ◀─ watch ◀─┘
//	verify ◀───────────────────┘
//
// Package schema defines the keys and their values, without an etcd client. Package etcd is a
// client that survives outages, with call deadlines and guarded reads. Package lease writes the
// keys that expire with their writer: an agent's instance, a proxy's presence and load digest.
// Package disk saves the membership in a file. Package verify judges instances by their answers to
// probes. Package watch builds immutable snapshots of the membership. Package store makes the
// changes of operators.
// The keys, under one root (default /pd/):
//
//	┌──────────────────────────────────────────────────────────┐
//	│ decode/ … override/ pending/ prefill/   │ proxies/ audit/│
//	└──────────────────────────────────────────────────────────┘
//	   ▲ lease.Registrar        │ list at R,       ▲ lease.Presence
//	   ▲ store.Instances, …     ▼ watch from R+1   ▲ store, with each change
//	                         watch.Watcher → table → Snapshot
//
// None of these packages exits the process or empties the membership because etcd is unreachable.
// Outside of discovery, only pdctl, the programs, the benchmarks and the test kit import the etcd
// client.
package discovery
