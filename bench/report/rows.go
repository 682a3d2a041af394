package report

import (
	"fmt"
	"math"
	"slices"
)

// The names that goals are about.
const (
	mesh    = "pdmesh"
	twoHop  = "two-hop"
	atFloor = "floor"
)

// Row is one goal and what became of it.
type Row struct {
	Text      string
	Unit      string
	Must, Aim float64
	// AtLeast tells that more is better.
	AtLeast bool
	// Values are those of the repeats, in their order; none if it was not run.
	Values []float64
}

// Verdict is how a row stands.
type Verdict string

// The verdicts.
const (
	Aim    Verdict = "aim met"
	Must   Verdict = "must met"
	Missed Verdict = "NOT MET"
	NotRun Verdict = "not run"
)

// Median of the repeats, NaN without any; of a row that must be zero the worst,
// as one wrong answer may not vanish in a median.
func (r *Row) Median() float64 {
	if r.Must == 0 && len(r.Values) > 0 {
		return slices.Max(r.Values)
	}
	return median(r.Values)
}

func median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	v := slices.Sorted(slices.Values(values))
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}

// Verdict judges the median.
func (r *Row) Verdict() Verdict {
	if len(r.Values) == 0 {
		return NotRun
	}
	better := func(goal float64) bool {
		if r.AtLeast {
			return r.Median() >= goal
		}
		return r.Median() <= goal
	}
	switch {
	case better(r.Aim):
		return Aim
	case better(r.Must):
		return Must
	default:
		return Missed
	}
}

// Rows computes all goals.
func (r *Run) Rows() []Row {
	ratio := func(workload string) func(int) (float64, bool) {
		return func(repeat int) (float64, bool) {
			return r.Ratio(workload, mesh, repeat)
		}
	}
	own := func(workload string, f func(*Cell) (float64, bool)) func(int) (float64, bool) {
		return func(repeat int) (float64, bool) {
			if c := r.cell(workload, mesh, repeat); c != nil {
				return f(c)
			}
			return 0, false
		}
	}
	cpu := func(c *Cell) (float64, bool) { return c.CPUPerRequest(), c.Right > 0 && c.CPU > 0 }
	cpuMillis := func(c *Cell) (float64, bool) { return c.CPUPerRequest() / 1000, c.Right > 0 && c.CPU > 0 }
	rss := func(c *Cell) (float64, bool) { return c.RSSPerStream(), c.Open > 0 && c.RSS > 0 }
	type goal struct {
		Row
		value func(repeat int) (float64, bool)
	}
	atLeast := func(text string, must, aim float64, value func(int) (float64, bool)) goal {
		return goal{Row{Text: text, Must: must, Aim: aim, AtLeast: true}, value}
	}
	atMost := func(text, unit string, must, aim float64, value func(int) (float64, bool)) goal {
		return goal{Row{Text: text, Unit: unit, Must: must, Aim: aim}, value}
	}
	goals := []goal{
		atLeast("128 B, 1 token, 32 connections: throughput / two-hop limit", 0.65, 0.80, ratio("small")),
		atMost("128 B, 1 token: CPU per request", "µs", 32, 22, own("small", cpu)),
		atLeast("64-token stream, ITL 0: throughput / two-hop limit", 0.86, 0.92, ratio("stream")),
		atMost("64-token stream: CPU per request", "µs", 160, 140, own("stream", cpu)),
		atMost("200 streams at 10 ms: TTFT p50 added to two-hop", "ms", 0.25, 0.12, func(repeat int) (float64, bool) {
			c, base := r.cell("open200", mesh, repeat), r.cell("open200", twoHop, repeat)
			if c == nil || base == nil || c.TTFT.Count == 0 || base.TTFT.Count == 0 {
				return 0, false
			}
			return c.TTFT.P50 - base.TTFT.P50, true
		}),
		atMost("200 streams at 10 ms: ITL p99", "ms", 12.5, 11.5, own("open200", func(c *Cell) (float64, bool) { return c.ITL.P99, c.ITL.Count > 0 })),
		atLeast("1,000 streams at 10 ms: throughput / two-hop limit", 0.93, 0.97, ratio("open1000")),
		atLeast("64 KiB prompt: throughput / two-hop limit", 0.80, 0.90, ratio("prompt64k")),
		atMost("64 KiB prompt: CPU per request", "µs", 75, 55, own("prompt64k", cpu)),
		atMost("1 MiB prompt: CPU per request", "ms", 1.0, 0.7, own("prompt1m", cpuMillis)),
		atMost("1 MiB prompt, 8 at once: peak extra memory per request", "× body", 1.3, 1.1, own("prompt1m", func(c *Cell) (float64, bool) { return c.PeakPerBody(), c.RSSPeak > 0 })),
		atMost("RSS per open stream, 1,000", "KiB", 44, 30, own("open1000", rss)),
		atMost("RSS per open stream, 5,000", "KiB", 44, 30, own("open5000", rss)),
		atMost("5,000 clients vanish: all upstream requests aborted after", "s", 0.5, 0.15, own("vanish5000", func(c *Cell) (float64, bool) {
			if c.NotAborted > 0 {
				return math.Inf(1), true
			}
			return c.Aborted, c.Open > 0
		})),
		atMost("1,000 instances, 50 changes/s: loss of throughput against 4 quiet ones", "%", 5, 1, func(repeat int) (float64, bool) {
			return r.churnLoss(mesh, repeat)
		}),
	}
	rows := make([]Row, 0, len(goals)+1)
	for _, g := range goals {
		for repeat := range r.Config.Repeats {
			if v, ok := g.value(repeat); ok {
				g.Values = append(g.Values, v)
			}
		}
		rows = append(rows, g.Row)
	}
	return append(rows, r.wrongRow())
}

// wrongRow counts what must never happen, through our proxy, in any cell. A
// request that our proxy did not hand over counts too: its answer is right,
// but not what was measured.
func (r *Run) wrongRow() Row {
	row := Row{Text: "wrong, cut, failed or misrouted answers in any run", Must: 0, Aim: 0}
	for repeat := range r.Config.Repeats {
		bad, some := 0.0, false
		for i := range r.Cells {
			c := &r.Cells[i]
			if c.Target != mesh || c.Repeat != repeat {
				continue
			}
			some = true
			bad += float64(c.Bad() + c.Violations + c.Bare)
			if c.Skipped != "" {
				bad++
			}
		}
		if some {
			row.Values = append(row.Values, bad)
		}
	}
	return row
}

// Ratio is a target's throughput as a share of the two-hop limit's in the same
// repeat.
func (r *Run) Ratio(workload, name string, repeat int) (float64, bool) {
	c, base := r.cell(workload, name, repeat), r.cell(workload, twoHop, repeat)
	if c == nil || base == nil || base.Throughput() == 0 {
		return 0, false
	}
	return c.Throughput() / base.Throughput(), true
}

// churnLoss is what a target loses of its throughput with many instances, in
// per cent: the median of a repeat's turns.
func (r *Run) churnLoss(name string, repeat int) (float64, bool) {
	return r.churned(name, repeat, func(c, base *Cell) float64 { return 100 * (1 - c.Throughput()/base.Throughput()) })
}

// churned is the median of what f makes of churn and quiet in each turn of a repeat.
func (r *Run) churned(name string, repeat int, f func(c, base *Cell) float64) (float64, bool) {
	var values []float64
	for turn := 0; ; turn++ {
		c, base := r.turn("churn", name, repeat, turn), r.turn("quiet", name, repeat, turn)
		if c == nil && base == nil {
			return median(values), len(values) > 0
		}
		if c != nil && base != nil && base.Throughput() > 0 {
			values = append(values, f(c, base))
		}
	}
}

// number spells a figure with as many digits as mean something.
func number(v float64) string {
	switch a := math.Abs(v); {
	case math.IsNaN(v):
		return "–"
	case math.IsInf(v, 0):
		return "never"
	case v == math.Trunc(v) && a < 1000:
		return fmt.Sprintf("%.0f", v)
	case a >= 1000:
		return thousands(int64(math.Round(v)))
	case a >= 100:
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}

func thousands(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// spread spells the smallest and the largest value.
func spread(values []float64) string {
	if len(values) < 2 {
		return ""
	}
	return number(slices.Min(values)) + " … " + number(slices.Max(values))
}
