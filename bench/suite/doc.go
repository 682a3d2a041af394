// Package suite runs the workloads against the targets, interleaved: every
// target once under a workload, then the next workload, and all of it as often
// as asked for. Each cell gets a fresh process of its target, so that the
// memory of one workload is not counted under another.
package suite
