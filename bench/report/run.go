// Package report has the figures of a run, and writes them as docs/performance/README.md.
//
// A ratio is that of two cells of one repeat, and the page has the median of the repeats:
// what slows the machine for a while slows both sides of a ratio.
package report

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/pdmesh/pdmesh/bench/machine"
	"github.com/pdmesh/pdmesh/sim/loadgen"
)

// Run has the figures of one run of the benchmark.
type Run struct {
	Started time.Time     `json:"started"`
	Commit  string        `json:"commit"`
	Machine machine.Facts `json:"machine"`
	Config  Config        `json:"config"`
	Cells   []Cell        `json:"cells"`
	Notes   []string      `json:"notes,omitempty"` // what a reader must know to judge the figures
}

// Config has the parameters of a run.
type Config struct {
	Workloads  []string `json:"workloads"`
	Targets    []string `json:"targets"`
	Repeats    int      `json:"repeats"`
	Seconds    float64  `json:"seconds"`
	ProxyFlags []string `json:"proxy_flags,omitempty"`
}

// Cell is one target under one workload in one repeat.
type Cell struct {
	Workload string `json:"workload"`
	Target   string `json:"target"`
	Repeat   int    `json:"repeat"`
	Skipped  string `json:"skipped,omitempty"` // the reason if there are no figures

	Seconds float64 `json:"seconds"` // of the measurement, in which the following was counted
	Right   uint64  `json:"right"`   // correct responses
	Tokens  uint64  `json:"tokens"`
	TTFT    Times   `json:"ttft"`
	ITL     Times   `json:"itl"`
	CPU     float64 `json:"cpu_seconds"`  // processor time of the target
	RSSIdle int64   `json:"rss_idle_kib"` // memory of the target before the load
	RSS     int64   `json:"rss_kib"`      // median during the measurement
	Open    int     `json:"open,omitempty"`

	// Over the whole cell, warm-up included.
	Wrong      uint64   `json:"wrong"`
	Failed     uint64   `json:"failed"`
	Violations uint64   `json:"violations"`     // requests that the engines refused
	Bare       uint64   `json:"bare,omitempty"` // decode requests of our proxy without KV transfer params
	Problems   []string `json:"problems,omitempty"`
}

// Times are quantiles in milliseconds.
type Times struct {
	Count uint64  `json:"count"`
	P99   float64 `json:"p99"`
}

// TimesOf returns the quantiles of a histogram.
func TimesOf(h *loadgen.Histogram) Times {
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	return Times{Count: h.Count(), P99: ms(h.Quantile(0.99))}
}

// figure is a figure of a cell; false if the cell does not have it.
type figure func(c *Cell) (float64, bool)

// streamTokens is the number of tokens of the streams whose CPU is compared.
const streamTokens = 128

// Throughput returns correct responses per second, or tokens per second of streams.
func (c *Cell) Throughput() (float64, bool) {
	if c.Open > 0 {
		return float64(c.Tokens) / c.Seconds, c.Seconds > 0
	}
	return float64(c.Right) / c.Seconds, c.Seconds > 0
}

// CPUMicros returns the CPU time of a request in µs.
func (c *Cell) CPUMicros() (float64, bool) {
	return c.CPU / float64(c.Right) * 1e6, c.CPU > 0 && c.Right > 0
}

// StreamMillis returns the CPU time of a stream of 128 tokens in ms. It is computed from
// tokens, because a stream may begin or end outside of the measurement.
func (c *Cell) StreamMillis() (float64, bool) {
	return c.CPU / float64(c.Tokens) * streamTokens * 1e3, c.CPU > 0 && c.Tokens > 0
}

// StreamKiB returns the memory of an open stream in KiB.
func (c *Cell) StreamKiB() (float64, bool) {
	return float64(c.RSS-c.RSSIdle) / float64(c.Open), c.Open > 0 && c.RSS > 0
}

// Bad returns the number of requests that were not answered or not sent as expected.
func (c *Cell) Bad() uint64 { return c.Wrong + c.Failed + c.Violations + c.Bare }

// Read reads a run from a file.
func Read(path string) (*Run, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read results: %w", err)
	}
	var r Run
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, fmt.Errorf("read results: %s: %w", path, err)
	}
	return &r, nil
}

// Write writes a run to a file.
func (r *Run) Write(path string) error {
	data, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	if err := os.WriteFile(path, append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	return nil
}

// cell returns a cell; nil if it was not run or skipped.
func (r *Run) cell(workload, target string, repeat int) *Cell {
	for i := range r.Cells {
		c := &r.Cells[i]
		if c.Workload == workload && c.Target == target && c.Repeat == repeat && c.Skipped == "" {
			return c
		}
	}
	return nil
}

// values returns a figure of a target in each repeat that has it.
func (r *Run) values(workload, target string, f figure) (out []float64) {
	for repeat := range r.Config.Repeats {
		if c := r.cell(workload, target, repeat); c != nil {
			if v, ok := f(c); ok {
				out = append(out, v)
			}
		}
	}
	return out
}

// ratios returns a figure of a target divided by that of another one, in each repeat in
// which both have it.
func (r *Run) ratios(workload, target, base string, f figure) (out []float64) {
	for repeat := range r.Config.Repeats {
		c, b := r.cell(workload, target, repeat), r.cell(workload, base, repeat)
		if c == nil || b == nil {
			continue
		}
		v, ok := f(c)
		if w, also := f(b); ok && also && w != 0 {
			out = append(out, v/w)
		}
	}
	return out
}

// median returns NaN without values.
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

// number formats a value with three significant digits; a dash for NaN.
func number(v float64) string {
	switch a := math.Abs(v); {
	case math.IsNaN(v):
		return "–"
	case a >= 1000:
		return humanize.Comma(int64(math.RoundToEven(v)))
	case a >= 100 || v == math.Trunc(v):
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}

// spread formats the smallest and the largest value.
func spread(values []float64) string {
	if len(values) < 2 {
		return ""
	}
	return number(slices.Min(values)) + " … " + number(slices.Max(values))
}

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
