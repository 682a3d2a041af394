// Package process runs the embedded etcd in a process of its own: the same
// program once more, which a variable of its environment makes an etcd.
//
// etcd ends its process when it cannot go on, by os.Exit or by a panic in one of
// its goroutines: no descriptor or no room is left, or its files are damaged.
// Nothing can be done about that from within. The requests of a proxy must go on,
// so etcd has a process that may end, with descriptors, a heap and a share of the
// processor for itself.
//
//	proxy ── Host ─── stdin: the configuration; its end is the end ──▶ etcd
//	              ◀── stdout: log lines, "serves at", "failed"    ───
//	              ◀── stderr: the trace of a panic                ───
//
// A Host starts it again when it has ended, with growing pauses. It ends with the
// process that started it, also when that is killed.
package process
