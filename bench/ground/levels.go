package ground

import (
	"fmt"
	"strings"

	"github.com/pdmesh/pdmesh/bench/machine"
	"github.com/pdmesh/pdmesh/bench/plot"
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

// Overload has the figures of targets at loads up to far above the capacity.
type Overload struct {
	Version string        `json:"version"`
	Machine machine.Facts `json:"machine"`
	Part    string        `json:"part"`
	Speed   float64       `json:"speed"` // 0: the model
	Engines int           `json:"engines"`
	Proxies int           `json:"proxies"`
	Runs    int           `json:"runs"`
	Limits  Limits        `json:"limits"`
	Targets []string      `json:"targets"`
	Levels  []Level       `json:"levels"`
}

// each calls f with the medians of each target at each load, in their order.
func (o *Overload) each(f func(l *Level, target string, m *Result)) {
	for i := range o.Levels {
		for _, target := range o.Targets {
			if runs := o.Levels[i].Runs[target]; len(runs) > 0 {
				m := Median(runs)
				f(&o.Levels[i], target, &m)
			}
		}
	}
}

// Table returns the figures as Markdown. In brackets, goodput is compared with the best of the same
// target at any load.
func (o *Overload) Table() string {
	best := map[string][2]float64{}
	o.each(func(_ *Level, target string, m *Result) {
		b := best[target]
		best[target] = [2]float64{max(b[0], m.GoodRate), max(b[1], m.GoodTokens)}
	})
	var b strings.Builder
	b.WriteString("| load | target | requests/s in time | tokens/s in time | in time % | TTFT p50 s | TTFT p90 s | ITL p90 ms | refused % | " +
		"longest / shortest quartile admitted | refusal p99 s | failures | machine busy % |\n" + strings.Repeat("|---", 13) + "|\n")
	o.each(func(l *Level, target string, m *Result) {
		name, of := target, best[target]
		if m.Void != "" {
			name += " (void)"
		}
		fmt.Fprintf(&b, "| %g | %s | %.2f (%.0f %%) | %.0f (%.0f %%) | %.1f | %.2f | %.2f | %.1f | %.1f | %.2f | %.2f | %d | %.0f |\n", l.Rate, name,
			m.GoodRate, 100*m.GoodRate/of[0], m.GoodTokens, 100*m.GoodTokens/of[1], 100*m.Good, m.TTFT50, m.TTFT90, 1000*m.ITL90,
			100*float64(m.Refused)/float64(max(1, m.Requests)), m.Admitted[3]/max(m.Admitted[0], 1e-9), m.Refusal, m.Failures, 100*m.Busy)
	})
	return b.String()
}

// WriteDoc writes the figures into a document, and the plot into the folder of its name.
func (o *Overload) WriteDoc(file string) error {
	const title = "Tokens of requests that meet their limits, per second"
	var bars []plot.Bar
	o.each(func(l *Level, target string, m *Result) {
		strong := strings.Contains(target, "=on")
		bars = append(bars, plot.Bar{Label: fmt.Sprintf("%g × %s", l.Rate, strings.TrimPrefix(target, "prefix+--")), Value: m.GoodTokens, Strong: strong})
	})
	dir, err := writePlots(file, map[string]string{"goodput.svg": plot.Bars(title, "", bars, 0, "")})
	if err != nil {
		return err
	}
	how := fmt.Sprintf("%s, %d cores, %s. The trace was sent %g times as fast, through %d proxies. Medians of %d runs.", o.Machine.CPU, o.Machine.Cores, o.Version, o.Speed, o.Proxies, o.Runs)
	if o.Speed == 0 {
		how = fmt.Sprintf("The real queue with modelled engines and a virtual clock, without HTTP. Proxies: %d.", o.Proxies)
	}
	text := fmt.Sprintf("\n%s The %s half of the trace; %d prefill and %d decode engines. Load 1 is the recorded rate. *In time* are requests whose first token comes within %g s "+
		"and whose tokens are at most %g ms apart on average; tokens are the uncached ones of their prompts and those of their answers. In brackets: of the target's best load.\n\n%s\n![%s](%s/goodput.svg)\n\n",
		how, o.Part, o.Engines, o.Engines, o.Limits.TTFT.Seconds(), 1000*o.Limits.ITL.Seconds(), o.Table(), title, dir)
	return ReplacePart(file, "fleet-overload", text)
}
