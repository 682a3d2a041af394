// Package awake keeps this process from sleeping while it waits for its network.
//
//	everything waits ──▶ Go asks the kernel to wake it ──▶ the core halts
//	                └─ with Keep ─▶ it looks again and again, and takes what has come
//
// For whatever sends something to a process that sleeps on another core pays for
// waking it, and over loopback that is the sender's processor time: an interrupt to
// the other core, which on a virtual machine takes the host's help. Between real
// machines nobody pays that for another. In a benchmark the target is the sender,
// and the more so the slower it is, as its peers then sleep more often.
package awake
