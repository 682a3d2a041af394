// Package flame draws a CPU profile as Go programs serve it (pprof's gzipped
// protocol buffer) as a flame graph.
//
//	Parse ──▶ Folded (stack;stack;stack count) ──▶ SVG
package flame
