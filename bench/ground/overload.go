package ground

import (
	"fmt"
	"strings"

	"github.com/pdmesh/pdmesh/bench/machine"
	"github.com/pdmesh/pdmesh/bench/plot"
)

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
