// Package report holds the figures of a run and turns them into text.
//
//	Run (JSON) ── Rows      the gates, each with median, spread and verdict
//	           ├─ Page      docs/performance/README.md, of all machines; the headline of the README
//	           └─ Plots     SVG
//
// A figure is computed within one repeat first (a ratio from two cells that
// ran one after the other), then the median of the repeats is taken: what
// slows the machine for a while slows both sides of a ratio.
package report
