// Package wrap runs one child process for a program: the engine in "pdmesh-agent ... -- vllm
// serve ...".
//
// The child gets its own process group, so that a Ctrl-C on the terminal reaches only the
// program, which decides when to signal the child. Output is passed through unchanged. When the
// child has exited, the rest of its group is ended, too: vLLM's workers hold GPU memory that
// the next start needs.
//
//	Start ──► running ──► exited (the child) ──► done (its whole group)
//
// A Reaper reaps orphans. A program needs one if it is process 1 of a container or has called
// Adopt.
package wrap
