// Package wrap runs one child process on behalf of a program that is in
// front of it: the engine behind "agent ... -- vllm serve ...".
//
// The child gets a process group of its own, so that a Ctrl-C on the terminal
// reaches the program alone, which decides what the child hears of it and when.
// Output goes through untouched. When the child has ended, what it left in its
// group is ended too: vLLM's workers hold the GPU's memory, and the next start
// needs it.
//
//	Start ──► running ──► Exited (the child has exited) ──► Done (its group is, too)
//
// A Reaper collects orphans, which a program must do that is process 1 of a
// container, or that has made itself their next of kin with Adopt.
package wrap
