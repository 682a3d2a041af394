package report

import (
	"fmt"
	"math"
	"slices"
)

// The names that gates are about.
const (
	mesh    = "pdmesh"
	meshStd = "pdmesh-std"
	twoHop  = "two-hop"
	atFloor = "floor"
	nginx   = "nginx"
	router  = "vllm-router"
)

// StreamTokens is how many tokens the streams have whose CPU is judged.
const StreamTokens = 128

// Row is one gate and what became of it: a figure of our proxy as a multiple of
// another target's in the same repeat. Of what must never happen it is a count.
type Row struct {
	Text string
	// Must is what the median may be at most.
	Must float64
	// Values are those of the repeats, in their order; none if it was not run.
	Values []float64
	// Ours and Others are the figures that Values are made of, in Unit.
	Ours, Others []float64
	Unit         string
}

// Verdict is how a row stands.
type Verdict string

// The verdicts.
const (
	Met    Verdict = "met"
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
	switch {
	case len(r.Values) == 0:
		return NotRun
	case r.Median() <= r.Must:
		return Met
	default:
		return Missed
	}
}

// figure is something of a cell that gates are about; false where the cell has none.
type figure func(c *Cell) (float64, bool)

func cpuMicros(c *Cell) (float64, bool) { return c.CPUPerRequest(), c.CPU > 0 && c.Right > 0 }

func streamMillis(c *Cell) (float64, bool) {
	return c.CPUPerStream(StreamTokens) / 1000, c.CPU > 0 && c.Tokens > 0
}

func kibPerStream(c *Cell) (float64, bool) { return c.RSSPerStream(), c.Open > 0 && c.RSS > 0 }

// Rows computes all gates.
func (r *Run) Rows() []Row {
	var rows []Row
	gate := func(workload, text, unit string, value figure, beside string, must float64) {
		row := Row{Text: text + " / " + beside, Must: must, Unit: unit}
		row.Ours, row.Others = r.pairs(workload, beside, value)
		row.Values = each(row.Ours, row.Others, quotient)
		rows = append(rows, row)
	}
	gate("small", "128 B, 1 token: CPU per request", "µs", cpuMicros, router, 0.6)
	gate("prompt64k", "64 KiB prompt: CPU per request", "µs", cpuMicros, router, 0.6)
	gate("open200", "200 streams of 128 tokens at 10 ms: CPU per stream", "ms", streamMillis, router, 1.05)
	gate("open1000", "1,000 streams of 128 tokens at 10 ms: CPU per stream", "ms", streamMillis, router, 0.8)
	gate("idle1000", "1,000 idle streams: memory per stream", "KiB", kibPerStream, router, 0.65)
	for _, api := range []string{"responses", "messages"} {
		const must = 1.1
		rows = append(rows,
			r.overChat(api+"2k", "chat2k", "2 KiB prompt, 1 token, over /v1/"+api+": CPU per request", "µs", cpuMicros, must),
			r.overChat(api+"200", "open200", "200 streams of 128 tokens at 10 ms over /v1/"+api+": CPU per stream", "ms", streamMillis, must))
	}
	return append(rows, r.wrongRow())
}

// overChat compares a workload with the same one over chats, both through our proxy.
func (r *Run) overChat(workload, chat, text, unit string, value figure, must float64) Row {
	row := Row{Text: text + " / chat's", Must: must, Unit: unit}
	for repeat := range r.Config.Repeats {
		c, base := r.cell(workload, mesh, repeat), r.cell(chat, mesh, repeat)
		if c == nil || base == nil {
			continue
		}
		a, ok := value(c)
		b, also := value(base)
		if ok && also && b != 0 {
			row.Ours, row.Others, row.Values = append(row.Ours, a), append(row.Others, b), append(row.Values, a/b)
		}
	}
	return row
}

// pairs are a figure of our proxy and of another target, in the repeats in which
// both were measured.
func (r *Run) pairs(workload, target string, value figure) (ours, others []float64) {
	for repeat := range r.Config.Repeats {
		c, base := r.cell(workload, mesh, repeat), r.cell(workload, target, repeat)
		if c == nil || base == nil {
			continue
		}
		a, ok := value(c)
		b, also := value(base)
		if ok && also && b != 0 {
			ours, others = append(ours, a), append(others, b)
		}
	}
	return ours, others
}

// wrongRow counts what must never happen, through our proxy with either upstream
// client, in any cell. A request without KV transfer counts too: its answer is correct,
// but not what was measured.
func (r *Run) wrongRow() Row {
	row := Row{Text: "wrong, cut, failed, misrouted or not aborted requests in any run"}
	for repeat := range r.Config.Repeats {
		bad, some := 0.0, false
		for i := range r.Cells {
			c := &r.Cells[i]
			if c.Target != mesh && c.Target != meshStd || c.Repeat != repeat {
				continue
			}
			some = true
			bad += float64(c.Bad() + c.Violations + c.Bare + uint64(c.NotAborted))
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
