// Package process runs the embedded etcd in a child process: this program, with an environment
// variable that makes it run as an etcd.
//
// etcd ends its process on a fatal error, by os.Exit or by a panic in one of its
// goroutines: no descriptor or no disk space is left, or its files are damaged. The
// caller cannot prevent that. The proxy must continue to serve requests, so etcd has
// a separate process, with its own descriptors, heap and share of the processor.
//
//	proxy ── Host ─── stdin: the configuration; its end stops etcd ──▶ etcd
//	              ◀── stdout: log lines, "serves at", "failed"    ───
//	              ◀── stderr: the trace of a panic                ───
//
// A Host restarts the child with backoff. The child exits with the process that started it, even if
// that is killed.
package process
