package ground

import (
	"fmt"
	"strings"

	"github.com/pdmesh/pdmesh/bench/machine"
)

// Ways returns the values of --disaggregate that are compared.
func Ways() []string { return []string{"always", "auto", "never"} }

// auto is the way that is compared with the better one of the others.
const auto = "auto"

// Disaggregated has the figures of conditional disaggregation at several loads.
type Disaggregated struct {
	Version string        `json:"version"`
	Machine machine.Facts `json:"machine"`
	Part    string        `json:"part"`
	Policy  string        `json:"policy"`
	Speed   float64       `json:"speed"`
	Engines int           `json:"engines"`
	Runs    int           `json:"runs"`
	Levels  []Level       `json:"levels"`
}

// Level has the figures at one load.
type Level struct {
	Rate     float64             `json:"rate"`
	Requests int                 `json:"requests"`
	Runs     map[string][]Result `json:"runs"` // by way
}

// figure is a figure that is compared; lower is better.
type figure struct {
	name   string
	format string
	scale  float64
	of     func(*Result) float64
}

func figures() []figure {
	return []figure{
		{"TTFT p50 s", "%.2f", 1, func(r *Result) float64 { return r.TTFT50 }},
		{"TTFT p90 s", "%.2f", 1, func(r *Result) float64 { return r.TTFT90 }},
		{"ITL p90 ms", "%.1f", 1000, func(r *Result) float64 { return r.ITL90 }},
	}
}

// worse returns the difference of a figure of auto to the better one of the other ways, as a part
// of it; negative if auto is better than both, false if a way has no runs.
func (l *Level) worse(f figure) (float64, bool) {
	better, own := 0.0, 0.0
	for _, way := range Ways() {
		if len(l.Runs[way]) == 0 {
			return 0, false
		}
		m := Median(l.Runs[way])
		switch is := f.of(&m); {
		case way == auto:
			own = is
		case better == 0 || is < better:
			better = is
		}
	}
	if better == 0 {
		return 0, false
	}
	return own/better - 1, true
}

// Table returns the figures as Markdown. In brackets, auto is compared with the better one of the
// other two ways.
func (d *Disaggregated) Table() string {
	var b strings.Builder
	b.WriteString("| load | requests | way |")
	for _, f := range figures() {
		b.WriteString(" " + f.name + " |")
	}
	b.WriteString(" goodput % | computed by decode % | failures | machine busy % |\n|---|---|---|")
	b.WriteString(strings.Repeat("---|", len(figures())+4) + "\n")
	for i := range d.Levels {
		l := &d.Levels[i]
		for _, way := range Ways() {
			if len(l.Runs[way]) == 0 {
				continue
			}
			m := Median(l.Runs[way])
			name := way
			if m.Void != "" {
				name += " (void)"
			}
			fmt.Fprintf(&b, "| %g | %d | %s |", l.Rate, l.Requests, name)
			for _, f := range figures() {
				fmt.Fprintf(&b, " "+f.format, f.scale*f.of(&m))
				if worse, ok := l.worse(f); ok && way == auto {
					fmt.Fprintf(&b, " (%+.0f %%)", 100*worse)
				}
				b.WriteString(" |")
			}
			fmt.Fprintf(&b, " %.1f | %.1f | %d | %.0f |\n", 100*m.Good, 100*m.Local, m.Failures, 100*m.Busy)
		}
	}
	return b.String()
}

// WriteDoc writes the figures into a document.
func (d *Disaggregated) WriteDoc(file string) error {
	var loads []string
	for i := range d.Levels {
		loads = append(loads, fmt.Sprintf("%g", d.Levels[i].Rate))
	}
	text := fmt.Sprintf("\n%s, %d cores, %s. The first requests of the %s part of the trace, at %s times the recorded rate, sent %g times as fast. "+
		"%d prefill and %d decode engines, policy `%s`. Medians of %d runs; the three settings take turns. In brackets: `auto` compared with the better of the other two. "+
		"ITL is the mean time between the tokens of one answer.\n\n%s\n",
		d.Machine.CPU, d.Machine.Cores, d.Version, d.Part, strings.Join(loads, ", "), d.Speed, d.Engines, d.Engines, d.Policy, d.Runs, d.Table())
	return ReplacePart(file, "fleet-disaggregate", text)
}
