package report

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/pdmesh/pdmesh/bench/machine"
	"github.com/pdmesh/pdmesh/bench/plot"
)

// Measured is the last run on a machine.
type Measured struct {
	Name string // of the folder
	Run  *Run
}

// marks matches the parts of a processor's name that do not identify it.
var marks = regexp.MustCompile(`\((r|tm)\)|\b(processor|cpu)\b|@.*`)

// NameOf returns the default name of a machine's folder, which is its processor's name.
func NameOf(f machine.Facts) string {
	words := strings.FieldsFunc(marks.ReplaceAllString(strings.ToLower(f.CPU), " "), func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < '0' || c > '9')
	})
	if len(words) == 0 {
		return "unknown"
	}
	return strings.Join(words, "-")
}

// ReadAll reads the runs of all machines from the folders of dir. The newest is first.
func ReadAll(dir string) (all []Measured, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "*", "result.json"))
	if err != nil {
		return nil, fmt.Errorf("read results: %w", err)
	}
	for _, file := range files {
		r, err := Read(file)
		if err != nil {
			return nil, err
		}
		all = append(all, Measured{Name: filepath.Base(filepath.Dir(file)), Run: r})
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("read results: no file %s", filepath.Join(dir, "MACHINE", "result.json"))
	}
	slices.SortStableFunc(all, func(a, b Measured) int { return b.Run.Started.Compare(a.Run.Started) })
	return all, nil
}

const intro = `# The cost of a request through the proxy

This page shows how much CPU time and memory the proxy needs, next to nginx and other routers. ` +
	"`make bench` writes it from `*/result.json`. Do not edit it." + `

## Method

- Each target runs alone on one core, our proxy with an access log in a file, metrics, health checks and a live etcd watch. Engines, load generator and etcd share the other core.
- CPU is the processor time of the target, divided by its correct responses (by its tokens for streams). Memory is the increase of the resident memory under load, divided by the open streams.
- vllm-router, smg and pdmesh send each request to a prefill and a decode engine (two hops). nginx is a plain reverse proxy with one hop.
- The load generator compares every byte of every response with the correct one.
- Targets run in turns in each repeat. A ratio is that of two figures of one repeat. Tables have the median of the repeats, with the smallest and the largest value.
- Gates limit only ratios, which depend less on the machine ([ADR 17](../adr/0017-keep-only-speed-that-pays-at-a-real-token-rate.md)).

[bench/README.md](../../bench/README.md) describes the workloads and the engine.

## How to repeat it

` + "```" + `
make bench                                               # all workloads, 3 repeats
make bench WORKLOADS=small TARGETS=vllm-router,pdmesh    # a part
make bench-report                                        # only the page
` + "```" + `

It needs Linux, two cores, ` + "`taskset`, and a machine without other work. nginx, vllm-router and smg are measured if they are installed." + `
`

// Page returns the page of all machines. The plots are those of Plots, in the folders.
func Page(all []Measured) string {
	var b strings.Builder
	b.WriteString(intro)
	for _, m := range all {
		r := m.Run
		fmt.Fprintf(&b, "\n## %s\n\n%s, commit `%s`: %s, %d cores, %s MiB, %s, %s. Repeats: %d of %s s.", m.Name, r.Started.Format("2006-01-02"), r.Commit,
			r.Machine.CPU, r.Machine.Cores, number(float64(r.Machine.Memory)), r.Machine.Kernel, r.Machine.Go, r.Config.Repeats, number(r.Config.Seconds))
		if len(r.Config.ProxyFlags) > 0 {
			fmt.Fprintf(&b, " Our proxy ran with `%s`.", strings.Join(r.Config.ProxyFlags, " "))
		}
		for _, n := range r.Notes {
			b.WriteString(" " + n)
		}
		fmt.Fprintf(&b, "\n\n### Gates\n\n%s\n### Figures\n\n", r.GateTable())
		r.figures(&b)
		for _, p := range r.Plots() {
			fmt.Fprintf(&b, "\n![%s](%s/%s)\n", p.Title, m.Name, p.File)
		}
	}
	return b.String()
}

// row is a figure of a workload.
type row struct {
	workload, text, unit string
	figure               figure
}

func rows() (out []row) {
	for _, w := range []struct{ name, text string }{
		{"small", "128 B, 1 token"}, {"prompt2k", "2 KiB, 1 token"}, {"prompt64k", "64 KiB, 1 token"},
	} {
		out = append(out, row{w.name, w.text + ": CPU of a request", "µs", (*Cell).CPUMicros},
			row{w.name, "requests/s", "", (*Cell).Throughput},
			row{w.name, "TTFT p99", "ms", func(c *Cell) (float64, bool) { return c.TTFT.P99, c.TTFT.Count > 0 }})
	}
	for _, w := range []struct{ name, text string }{{"open200", "200"}, {"open1000", "1,000"}} {
		out = append(out, row{w.name, w.text + " streams of 128 tokens at 10 ms: CPU of a stream", "ms", (*Cell).StreamMillis},
			row{w.name, "tokens/s", "", (*Cell).Throughput},
			row{w.name, "ITL p99", "ms", func(c *Cell) (float64, bool) { return c.ITL.P99, c.ITL.Count > 0 }},
			row{w.name, "memory of a stream", "KiB", (*Cell).StreamKiB})
	}
	return append(out, row{"idle1000", "1,000 streams, a token every 2 s: memory of a stream", "KiB", (*Cell).StreamKiB},
		row{"pick1000", "128 B, 1 token, 1,000 engines: CPU of a request", "µs", (*Cell).CPUMicros})
}

// figures writes the table of figures, and the reasons for missing ones.
func (r *Run) figures(b *strings.Builder) {
	targets := r.Config.Targets
	fmt.Fprintf(b, "| | %s |\n|---|%s\n", strings.Join(targets, " | "), strings.Repeat("---|", len(targets)))
	for _, row := range rows() {
		line, some := "| "+row.text+" |", false
		for _, t := range targets {
			values := r.values(row.workload, t, row.figure)
			line += " " + strings.TrimSpace(number(median(values))+" "+row.unit)
			if s := spread(values); s != "" {
				line += " (" + s + ")"
			}
			line += " |"
			some = some || len(values) > 0
		}
		if some {
			b.WriteString(strings.ReplaceAll(line, "– "+row.unit, "–") + "\n")
		}
	}
	seen := make(map[string]bool)
	note := func(text string) {
		if !seen[text] {
			seen[text] = true
			fmt.Fprintf(b, "\n%s.\n", strings.Join(strings.Fields(text), " "))
		}
	}
	for i := range r.Cells {
		c := &r.Cells[i]
		switch c.Skipped {
		case "":
		case NotInstalled:
			note(c.Target + " is not installed")
		default:
			note(c.Target + ", " + c.Workload + ": skipped: " + c.Skipped)
		}
		for _, p := range c.Problems {
			note(c.Target + ", " + c.Workload + ": " + p)
		}
	}
}

// NotInstalled is the value of Cell.Skipped if the program of the target is missing.
const NotInstalled = "not installed"

// Plot is a plot of the page.
type Plot struct{ File, Title, SVG string }

// Plots returns the plots, without those that would be empty.
func (r *Run) Plots() (out []Plot) {
	for _, p := range []struct {
		row
		file string
	}{
		{row{"small", "128 B, 1 token: CPU of a request", "µs", (*Cell).CPUMicros}, "cpu-small.svg"},
		{row{"open1000", "1,000 streams of 128 tokens at 10 ms: CPU of a stream", "ms", (*Cell).StreamMillis}, "cpu-open1000.svg"},
	} {
		var bars []plot.Bar
		for _, t := range r.Config.Targets {
			if v := r.values(p.workload, t, p.figure); len(v) > 0 {
				bars = append(bars, plot.Bar{Label: t, Value: median(v), Lo: slices.Min(v), Hi: slices.Max(v), Strong: t == mesh})
			}
		}
		if len(bars) > 0 {
			out = append(out, Plot{p.file, p.text, plot.Bars(p.text, p.unit, bars, 0, "")})
		}
	}
	return out
}
