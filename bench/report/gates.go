package report

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// The targets of the gates.
const (
	mesh   = "pdmesh"
	router = "vllm-router"
)

// Gate is a limit: a figure of our proxy divided by that of another target in the same
// repeat, or a number of bad requests.
type Gate struct {
	Text   string
	Limit  float64   // of the median; 0: of every repeat
	Values []float64 // of the repeats; none if the gate was not run
}

// Value returns the median, or the largest value if the limit is 0; NaN without values.
func (g *Gate) Value() float64 {
	if g.Limit == 0 && len(g.Values) > 0 {
		return slices.Max(g.Values)
	}
	return median(g.Values)
}

// Missed reports whether the gate was run and its limit is exceeded.
func (g *Gate) Missed() bool { return g.Value() > g.Limit }

// Verdict returns the result of the gate.
func (g *Gate) Verdict() string {
	switch {
	case len(g.Values) == 0:
		return "not run"
	case g.Missed():
		return "**missed**"
	}
	return "met"
}

// Gates returns all gates.
func (r *Run) Gates() []Gate {
	gate := func(limit float64, workload, text string, f figure) Gate {
		return Gate{text + " / " + router, limit, r.ratios(workload, mesh, router, f)}
	}
	bad := Gate{Text: "bad requests in any workload"}
	for repeat := range r.Config.Repeats {
		n, run := uint64(0), false
		for i := range r.Cells {
			if c := &r.Cells[i]; c.Target == mesh && c.Repeat == repeat {
				run = true
				if n += c.Bad(); c.Skipped != "" {
					n++
				}
			}
		}
		if run {
			bad.Values = append(bad.Values, float64(n))
		}
	}
	return []Gate{
		gate(0.6, "small", "128 B, 1 token: CPU of a request", (*Cell).CPUMicros),
		gate(0.6, "prompt64k", "64 KiB prompt, 1 token: CPU of a request", (*Cell).CPUMicros),
		gate(1.05, "open200", "200 streams at 10 ms: CPU of a stream", (*Cell).StreamMillis),
		gate(0.8, "open1000", "1,000 streams at 10 ms: CPU of a stream", (*Cell).StreamMillis),
		gate(0.65, "idle1000", "1,000 idle streams: memory of a stream", (*Cell).StreamKiB),
		bad,
	}
}

// Missed returns the gates whose limits are exceeded, as one text; "" for none.
func (r *Run) Missed() string {
	var missed []string
	for _, g := range r.Gates() {
		if g.Missed() {
			missed = append(missed, fmt.Sprintf("%s: %s, must be at most %s", g.Text, number(g.Value()), number(g.Limit)))
		}
	}
	return strings.Join(missed, "; ")
}

// GateTable returns the gates as a Markdown table.
func (r *Run) GateTable() string {
	var b strings.Builder
	b.WriteString("| gate | at most | measured | spread | |\n|---|---|---|---|---|\n")
	for _, g := range r.Gates() {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", g.Text, number(g.Limit), number(g.Value()), spread(g.Values), g.Verdict())
	}
	return b.String()
}

// Against writes the CPU time of a request with each target, and its difference to that
// with base in per cent: the median of the repeats, the smallest and the largest one.
func (r *Run) Against(out io.Writer, base string) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "workload\ttarget\tCPU µs/request\tagainst %s\tmin\tmax\n", base)
	for _, workload := range r.Config.Workloads {
		for _, target := range r.Config.Targets {
			more := r.ratios(workload, target, base, (*Cell).CPUMicros)
			if len(more) == 0 {
				continue
			}
			percent := func(ratio float64) float64 { return (ratio - 1) * 100 }
			fmt.Fprintf(w, "%s\t%s\t%.1f\t%+.1f %%\t%+.1f\t%+.1f\n", workload, target, median(r.values(workload, target, (*Cell).CPUMicros)),
				percent(median(more)), percent(slices.Min(more)), percent(slices.Max(more)))
		}
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	return nil
}
