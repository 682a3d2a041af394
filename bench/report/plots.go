package report

import (
	"slices"

	"github.com/pdmesh/pdmesh/bench/plot"
)

// Drawing is a plot and its contents.
type Drawing struct {
	Plot
	SVG string
}

// Drawings are bar charts of what was measured; one that would have no bars is
// left out.
func (r *Run) Drawings() (out []Drawing) {
	chart := func(file, title, unit, workload string, mark float64, label string, value func(*Cell) (float64, bool)) {
		var bars []plot.Bar
		for _, t := range r.targets() {
			var v []float64
			for repeat := range r.Config.Repeats {
				if c := r.cell(workload, t, repeat); c != nil {
					if x, ok := value(c); ok {
						v = append(v, x)
					}
				}
			}
			if len(v) > 0 {
				bars = append(bars, plot.Bar{Label: t, Value: median(v), Lo: slices.Min(v), Hi: slices.Max(v), Strong: t == mesh})
			}
		}
		if len(bars) > 0 {
			out = append(out, Drawing{Plot{file, title}, plot.Bars(title, unit, bars, mark, label)})
		}
	}
	ratio := func(c *Cell) (float64, bool) { return r.Ratio(c.Workload, c.Target, c.Repeat) }
	for _, w := range []struct{ name, about string }{
		{"small", "128 B, 1 token"}, {"stream", "64-token stream, ITL 0"}, {"prompt64k", "64 KiB prompt"}, {"prompt1m", "1 MiB prompt"},
	} {
		chart("ratio-"+w.name+".svg", w.about+": throughput / two-hop limit", "", w.name, 1, "two-hop limit", ratio)
		chart("cpu-"+w.name+".svg", w.about+": CPU per request", "µs", w.name, 0, "", cpuMicros)
	}
	for _, w := range []struct{ name, about string }{{"open200", "200"}, {"open1000", "1,000"}} {
		chart("cpu-"+w.name+".svg", w.about+" streams of 128 tokens at 10 ms: CPU per stream", "ms", w.name, 0, "", streamMillis)
	}
	chart("ratio-open1000.svg", "1,000 streams at 10 ms: tokens/s / two-hop limit", "", "open1000", 1, "two-hop limit", ratio)
	for _, w := range []struct{ name, about string }{{"open1000", "1,000"}, {"open5000", "5,000"}, {"idle1000", "1,000 slow"}, {"idle10000", "10,000 slow"}} {
		chart("rss-"+w.name+".svg", w.about+" open streams: memory per stream", "KiB", w.name, 0, "", kibPerStream)
	}
	chart("vanish.svg", "5,000 clients vanish: engines free after", "s", "vanish5000", 0, "", func(c *Cell) (float64, bool) { return c.Aborted, c.Aborted > 0 })
	return out
}
