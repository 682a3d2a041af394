package ground

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/pdmesh/pdmesh/bench/machine"
	"github.com/pdmesh/pdmesh/bench/plot"
)

// Report has the figures of all targets.
type Report struct {
	Version  string        `json:"version"`
	Machine  machine.Facts `json:"machine"`
	Part     string        `json:"part"`
	Requests int           `json:"requests"`
	Seconds  float64       `json:"seconds"` // of the trace
	Speed    float64       `json:"speed"`
	Rate     float64       `json:"rate"`
	Cache    float64       `json:"cache"`
	Engines  int           `json:"engines"`
	Proxies  int           `json:"proxies"`
	Runs     int           `json:"runs"`
	Shared   float64       `json:"shared_cache_hit_ratio"`
	SLOTTFT  float64       `json:"slo_ttft_s"`
	SLOITL   float64       `json:"slo_itl_s"`
	Absent   []string      `json:"absent,omitempty"`
	Rows     [][]Result    `json:"rows"` // the runs of each target
}

// Medians returns a result for each target.
func (r *Report) Medians() []Result {
	var out []Result
	for _, runs := range r.Rows {
		out = append(out, Median(runs))
	}
	return out
}

// Table returns results as Markdown.
func Table(rows []Result) string {
	var b strings.Builder
	b.WriteString("| target | TTFT p50 s | TTFT p90 s | hits % | of shared cache % | max / mean load | goodput % | computed by decode % | failures | router CPU µs | machine busy % |\n")
	b.WriteString("|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, r := range rows {
		name := r.Target
		if r.Void != "" {
			name += " (void)"
		}
		cpu, busy := "–", "–"
		if r.Busy > 0 {
			cpu, busy = fmt.Sprintf("%.0f", r.RouterCPU), fmt.Sprintf("%.0f", 100*r.Busy)
		}
		fmt.Fprintf(&b, "| %s | %.2f | %.2f | %.1f | %.1f | %.2f | %.1f | %.1f | %d | %s | %s |\n", name, r.TTFT50, r.TTFT90,
			100*r.Hits, 100*r.OfShared, r.Spread, 100*r.Good, 100*r.Local, r.Failures, cpu, busy)
	}
	return b.String()
}

// Figures can be written into a document.
type Figures interface{ WriteDoc(file string) error }

// Save writes figures to a file as JSON, and into a document, unless the names are empty.
func Save(f Figures, file, doc string) error {
	if file != "" {
		b, err := json.MarshalIndent(f, "", "  ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(file, append(b, '\n'), 0o644); err != nil { //nolint:gosec // figures are public
			return err
		}
	}
	if doc == "" {
		return nil
	}
	return f.WriteDoc(doc)
}

// ErrMarks is returned for a document without marks.
var ErrMarks = errors.New("document has no marks of a generated part")

// WriteDoc writes the figures into a document, and the plots into the folder of its name.
func (r *Report) WriteDoc(file string) error {
	dir, err := writePlots(file, r.plots())
	if err != nil {
		return err
	}
	return ReplacePart(file, "fleet-bench", r.markdown(dir))
}

// writePlots writes plots, by the names of their files, into the folder of a document, and
// returns the name of the folder.
func writePlots(doc string, plots map[string]string) (folder string, err error) {
	dir := strings.TrimSuffix(doc, ".md")
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // documents are public
		return "", err
	}
	for name, svg := range plots {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(svg), 0o644); err != nil { //nolint:gosec // as above
			return "", err
		}
	}
	return filepath.Base(dir), nil
}

// ReplacePart replaces the part of a document that a target of make writes.
func ReplacePart(file, target, text string) error {
	old, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	begin, end := "<!-- made by make "+target+": begin -->\n", "<!-- made by make "+target+": end -->\n"
	before, rest, ok1 := strings.Cut(string(old), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok1 || !ok2 {
		return fmt.Errorf("%s: %w", file, ErrMarks)
	}
	return os.WriteFile(file, []byte(before+begin+text+end+after), 0o644) //nolint:gosec // documents are public
}

func (r *Report) markdown(dir string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n%s, %d cores, %s. The %s part of the trace has %d requests in %.0f s. It was sent %g times as fast, at %g times the recorded rate. "+
		"Engines: %d prefill, %d decode. Proxies: %d. All prefill caches together hold %g times the tokens of this part. "+
		"One shared cache of that size would hold %.1f %% of the prompt tokens when they are needed. "+
		"Goodput counts a request whose first token comes within %g s and whose tokens are at most %g ms apart on average. Medians of %d runs.\n\n",
		r.Machine.CPU, r.Machine.Cores, r.Version, r.Part, r.Requests, r.Seconds, r.Speed, r.Rate,
		r.Engines, r.Engines, max(1, r.Proxies), r.Cache, 100*r.Shared, r.SLOTTFT, 1000*r.SLOITL, r.Runs)
	b.WriteString(Table(r.Medians()))
	b.WriteByte('\n')
	for _, p := range plots() {
		fmt.Fprintf(&b, "![%s](%s/%s)\n", p.title, dir, p.file)
	}
	for _, a := range r.Absent {
		fmt.Fprintf(&b, "\nNot measured: %s\n", strings.ReplaceAll(a, "\n", " "))
	}
	b.WriteByte('\n')
	return b.String()
}

type chart struct {
	file, title, unit string
	of                func(*Result) float64
}

func plots() []chart {
	return []chart{
		{"ttft-p50.svg", "Time to the first token, median", "s", func(r *Result) float64 { return r.TTFT50 }},
		{"ttft-p90.svg", "Time to the first token, 90th percentile", "s", func(r *Result) float64 { return r.TTFT90 }},
		{"hits.svg", "Prompt tokens found in the caches of prefill", "%", func(r *Result) float64 { return 100 * r.Hits }},
		{"load.svg", "What the busiest prefill engine computed, to the mean", "×", func(r *Result) float64 { return r.Spread }},
	}
}

// plots returns a chart for each figure by file name, with the spread of the runs.
func (r *Report) plots() map[string]string {
	out := make(map[string]string)
	for _, c := range plots() {
		var bars []plot.Bar
		for _, runs := range r.Rows {
			m := Median(runs)
			bar := plot.Bar{Label: m.Target, Value: c.of(&m), Strong: !strings.Contains(m.Target, ":")}
			bar.Lo, bar.Hi = bar.Value, bar.Value
			for i := range runs {
				if runs[i].Void == m.Void {
					bar.Lo, bar.Hi = min(bar.Lo, c.of(&runs[i])), max(bar.Hi, c.of(&runs[i]))
				}
			}
			bars = append(bars, bar)
		}
		mark, label := 0.0, ""
		if c.file == "hits.svg" {
			mark, label = 100*r.Shared, "one cache for all"
		}
		out[c.file] = plot.Bars(c.title, c.unit, bars, mark, label)
	}
	return out
}
