// Package target starts what is measured, each as a process of its own pinned
// to one core, and the etcd that our proxy follows.
//
//	Lab ── Etcd ── Members    the instances, leased keys, and their churn
//	    └─ Start(Spec) ──▶ Running    address, processes, log
//
// Whatever is started ends with Lab.Close.
package target
