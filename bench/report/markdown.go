package report

import (
	"fmt"
	"slices"
	"strings"
)

// Plot is a picture to be named in the text.
type Plot struct{ File, Title string }

// section is what one machine has to say on the page of all.
func (m *Measured) section(b *strings.Builder) {
	r := m.Run
	fmt.Fprintf(b, "\n## %s\n\n", m.Name)
	r.setting(b)
	b.WriteString("### Gates\n\n")
	b.WriteString(r.Headline())
	r.missed(b)
	r.beside(b)
	if len(m.Plots) > 0 {
		b.WriteString("\n### Pictures\n\n")
		for _, p := range m.Plots {
			fmt.Fprintf(b, "![%s](%s)\n\n", p.Title, p.File)
		}
	}
	b.WriteString("\n### Everything that was measured\n\nEach figure is the median of the repeats, with the smallest and the largest behind it. *Ratio* is the throughput divided by that of two-hop in the same repeat. CPU and memory are only those of the target's processes. Times are in ms.\n")
	for _, w := range r.workloads() {
		r.workload(b, w)
	}
}

func (r *Run) setting(b *strings.Builder) {
	m, c := &r.Machine, &r.Config
	pinned := "The target is pinned to one core; engines, generator and etcd share another."
	if !c.Pinned {
		pinned = "Nothing was pinned."
	}
	if c.Awake {
		pinned += " Engines and generator do not sleep while they wait, so no target spends CPU time to wake them."
	}
	fmt.Fprintf(b, "%s, commit `%s`: %s, %d cores, %s MiB, %s, %s. %s Repeats: %d of %s s each, interleaved; engine `%s`, connector `%s`", r.Started.Format("2006-01-02"), r.Commit,
		m.CPU, m.Cores, thousands(m.Memory), m.Kernel, m.Go, pinned, c.Repeats, number(c.Seconds), c.Engine, c.Connector)
	if len(c.ProxyFlags) > 0 {
		fmt.Fprintf(b, ", our proxy with `%s`", strings.Join(c.ProxyFlags, " "))
	}
	if c.Rate > 0 {
		fmt.Fprintf(b, ", an open loop of %s requests/s", number(c.Rate))
	}
	b.WriteString(".\n\nThe proxy runs as a user would run it: access log to a file, metrics, health checks, retries, and a live etcd watch.\n")
	r.idle(b)
	r.calm(b)
	for _, n := range r.Notes {
		fmt.Fprintf(b, "\n%s\n", n)
	}
	b.WriteString("\n")
}

// idle reports how quiet the machine was.
func (r *Run) idle(b *strings.Builder) {
	var best float64
	for _, s := range r.Idle {
		best = max(best, s.Best)
	}
	if best == 0 {
		return
	}
	var shares []string
	for _, s := range r.Idle {
		shares = append(shares, fmt.Sprintf("%.0f", 100*s.Mean/best))
	}
	fmt.Fprintf(b, "\nBefore the repeats, while nothing else ran, a loop that only computes reached %s %% of its best speed. Other work on this machine, or a slower clock, took the rest. Work that needs memory loses more. All of it counts as CPU time of the target.\n", strings.Join(shares, ", "))
}

// calm reports how it was waited for a quiet machine.
func (r *Run) calm(b *strings.Builder) {
	c := r.Calm
	if c == nil {
		return
	}
	if c.Problem != "" {
		fmt.Fprintf(b, "\nA probe of how busy the host is failed, so the run did not wait there: %s\n", c.Problem)
	}
	if len(c.Begun) == 0 {
		return
	}
	begun := slices.Sorted(slices.Values(c.Begun))
	fmt.Fprintf(b, "\nBefore each part that depends on how busy the host is, a probe measured the system calls of a small request: %.1f µs at best. The run waited until a probe took at most %.2f times as much, %.0f s in all (%.0f s at most). Everything that was measured after that counts. %d parts were measured, with a median probe of %.1f µs; %d of them began with a slower probe, because the time for waiting had ended.\n",
		c.Best, c.Tolerated, c.Waited, c.Patience, len(begun), begun[len(begun)/2], c.Anyway)
}

// Headline is the table of gates.
func (r *Run) Headline() string {
	var b strings.Builder
	b.WriteString("| | at most | measured | spread | pdmesh | the other | |\n|---|---|---|---|---|---|---|\n")
	for _, row := range r.Rows() {
		verdict := string(row.Verdict())
		if row.Verdict() == Missed {
			verdict = "**" + verdict + "**"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s |\n", row.Text, number(row.Must), number(row.Median()), spread(row.Values),
			row.measured(row.Ours), row.measured(row.Others), verdict)
	}
	return b.String()
}

// measured spells the median of figures with their unit.
func (r *Row) measured(values []float64) string {
	if len(values) == 0 {
		return ""
	}
	return number(median(values)) + " " + r.Unit
}

// missed names the rows that were not met, and the cells that say why.
func (r *Run) missed(b *strings.Builder) {
	var missed, notRun []string
	for _, row := range r.Rows() {
		switch row.Verdict() {
		case Missed:
			missed = append(missed, fmt.Sprintf("- %s: %s, must be %s at most", row.Text, number(row.Median()), number(row.Must)))
		case NotRun:
			notRun = append(notRun, row.Text)
		}
	}
	switch {
	case len(missed) > 0:
		fmt.Fprintf(b, "\n#### Not met\n\n%s\n", strings.Join(missed, "\n"))
	case len(notRun) == 0:
		b.WriteString("\nEvery gate is met.\n")
	}
	if len(notRun) > 0 {
		fmt.Fprintf(b, "\nNot run: %s.\n", strings.Join(notRun, "; "))
	}
	seen := make(map[string]bool)
	for i := range r.Cells {
		c := &r.Cells[i]
		for _, p := range c.Problems {
			text := fmt.Sprintf("- %s, %s, repeat %d: %s\n", c.Workload, c.Target, c.Repeat+1, oneLine(p))
			if !seen[text] {
				if len(seen) == 0 {
					b.WriteString("\n#### What went wrong\n\n")
				}
				seen[text] = true
				b.WriteString(text)
			}
		}
	}
}

func oneLine(s string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(s), " "), "|", "\\|")
}

// longPrompt is the length from which on a prompt is most of what a request takes.
const longPrompt = 64 << 10

// column is one figure of the tables of workloads.
type column struct {
	name  string
	value func(r *Run, c *Cell) (float64, bool)
}

func columns() []column {
	simple := func(f func(*Cell) float64) func(*Run, *Cell) (float64, bool) {
		return func(_ *Run, c *Cell) (float64, bool) { v := f(c); return v, v != 0 }
	}
	ms := func(f func(*Cell) (Times, float64)) func(*Run, *Cell) (float64, bool) {
		return func(_ *Run, c *Cell) (float64, bool) { t, v := f(c); return v, t.Count > 0 }
	}
	return []column{
		{"per second", simple((*Cell).Throughput)},
		{"ratio", func(r *Run, c *Cell) (float64, bool) { return r.Ratio(c.Workload, c.Target, c.Repeat) }},
		{"CPU µs/request", func(_ *Run, c *Cell) (float64, bool) { return c.CPUPerRequest(), c.CPU > 0 && c.Right > 0 }},
		{"CPU s/1M events", func(_ *Run, c *Cell) (float64, bool) { return c.CPUPerMillionEvents(), c.CPU > 0 && c.Events > 0 }},
		{"TTFT p50", ms(func(c *Cell) (Times, float64) { return c.TTFT, c.TTFT.P50 })},
		{"p99", ms(func(c *Cell) (Times, float64) { return c.TTFT, c.TTFT.P99 })},
		{"p99.9", ms(func(c *Cell) (Times, float64) { return c.TTFT, c.TTFT.P999 })},
		{"ITL p50", ms(func(c *Cell) (Times, float64) { return c.ITL, c.ITL.P50 })},
		{"p99", ms(func(c *Cell) (Times, float64) { return c.ITL, c.ITL.P99 })},
		{"p99.9", ms(func(c *Cell) (Times, float64) { return c.ITL, c.ITL.P999 })},
		{"end to end p50", ms(func(c *Cell) (Times, float64) { return c.Total, c.Total.P50 })},
		{"p99", ms(func(c *Cell) (Times, float64) { return c.Total, c.Total.P99 })},
		{"peak RSS KiB", simple(func(c *Cell) float64 { return float64(c.RSSPeak) })},
		{"peak / body", func(_ *Run, c *Cell) (float64, bool) { return c.PeakPerBody(), c.RSSPeak > 0 && c.Prompt >= longPrompt }},
		{"KiB/stream", func(_ *Run, c *Cell) (float64, bool) { return c.RSSPerStream(), c.Open > 0 && c.RSS > 0 }},
		{"aborted after s", simple(func(c *Cell) float64 { return c.Aborted })},
	}
}

func (r *Run) workload(b *strings.Builder, name string) {
	var cols []column
	for _, col := range columns() {
		for i := range r.Cells {
			if c := &r.Cells[i]; c.Workload == name && c.Skipped == "" {
				if _, ok := col.value(r, c); ok {
					cols = append(cols, col)
					break
				}
			}
		}
	}
	fmt.Fprintf(b, "\n#### %s\n\n| |", name)
	for _, col := range cols {
		fmt.Fprintf(b, " %s |", col.name)
	}
	b.WriteString(" wrong |\n|---|" + strings.Repeat("---|", len(cols)+1) + "\n")
	var skips []string // one reason for each target
	for _, t := range r.targets() {
		var cells []*Cell
		bad, skipped := uint64(0), false
		for i := range r.Cells {
			c := &r.Cells[i]
			if c.Workload != name || c.Target != t {
				continue
			}
			if c.Skipped != "" {
				if !skipped {
					skips = append(skips, fmt.Sprintf("%s was skipped: %s.", t, oneLine(c.Skipped)))
				}
				skipped = true
				continue
			}
			cells = append(cells, c)
			bad += c.Bad()
		}
		if len(cells) == 0 {
			continue
		}
		fmt.Fprintf(b, "| %s |", t)
		for _, col := range cols {
			var values []float64
			for _, c := range cells {
				if v, ok := col.value(r, c); ok {
					values = append(values, v)
				}
			}
			text := ""
			if len(values) > 0 {
				text = number(median(values))
				if s := spread(values); s != "" {
					text += " (" + s + ")"
				}
			}
			fmt.Fprintf(b, " %s |", text)
		}
		fmt.Fprintf(b, " %d |\n", bad)
	}
	for _, s := range skips {
		fmt.Fprintf(b, "\n%s\n", s)
	}
}
