package report

import (
	"fmt"
	"strings"
)

// The marks in a README between which Renew puts the headline.
const (
	Begin = "<!-- bench: begin -->"
	End   = "<!-- bench: end -->"
)

// Renew replaces what is between the marks; false if they are not there.
func (r *Run) Renew(text string) (string, bool) {
	head, rest, ok := strings.Cut(text, Begin)
	if !ok {
		return text, false
	}
	_, tail, ok := strings.Cut(rest, End)
	if !ok {
		return text, false
	}
	about := fmt.Sprintf("Commit `%s`, %s, %d repeats; all of it in [docs/performance.md](docs/performance.md).", r.Commit, r.Machine.CPU, r.Config.Repeats)
	return head + Begin + "\n" + r.beside() + "\n" + r.standing() + about + "\n" + End + tail, true
}

// beside is what matters most of ours, with the same of nginx.
func (r *Run) beside() string {
	cpu := func(workload string) func(string, int) (float64, bool) {
		return func(target string, repeat int) (float64, bool) {
			c := r.cell(workload, target, repeat)
			if c == nil || c.CPU == 0 || c.Right == 0 {
				return 0, false
			}
			return c.CPUPerRequest(), true
		}
	}
	share := func(workload string) func(string, int) (float64, bool) {
		return func(target string, repeat int) (float64, bool) { return r.Ratio(workload, target, repeat) }
	}
	var b strings.Builder
	b.WriteString("| | pdmesh, two legs | nginx, one hop |\n|---|---|---|\n")
	for _, line := range []struct {
		text, unit string
		value      func(target string, repeat int) (float64, bool)
	}{
		{"prompt of 128 B, 1 token: CPU for a request", " µs", cpu("small")},
		{"prompt of 64 KiB: CPU for a request", " µs", cpu("prompt64k")},
		{"prompt of 1 MiB: CPU for a request", " µs", cpu("prompt1m")},
		{"64-token stream, as fast as it comes: CPU for a request", " µs", cpu("stream")},
		{"small requests: share of the limit", "", share("small")},
		{"prompts of 64 KiB: share of the limit", "", share("prompt64k")},
		{"1,000 streams at 100 tokens/s each: share of the limit", "", share("open1000")},
		{"memory for an open stream, 5,000 of them", " KiB", func(target string, repeat int) (float64, bool) {
			c := r.cell("open5000", target, repeat)
			if c == nil || c.Open == 0 || c.RSS == 0 {
				return 0, false
			}
			return c.RSSPerStream(), true
		}},
	} {
		fmt.Fprintf(&b, "| %s |", line.text)
		for _, target := range []string{mesh, "nginx"} {
			var values []float64
			for repeat := range r.Config.Repeats {
				if v, ok := line.value(target, repeat); ok {
					values = append(values, v)
				}
			}
			if len(values) == 0 {
				b.WriteString(" – |")
				continue
			}
			fmt.Fprintf(&b, " %s%s |", number(median(values)), line.unit)
		}
		b.WriteString("\n")
	}
	return b.String()
}

// standing tells how many goals are met, and names those that are not.
func (r *Run) standing() string {
	met, run := 0, 0
	var missed []string
	for _, row := range r.Rows() {
		switch row.Verdict() {
		case NotRun:
			continue
		case Missed:
			missed = append(missed, fmt.Sprintf("%s (%s, must be %s)", row.Text,
				strings.TrimSpace(number(row.Median())+" "+row.Unit), strings.TrimSpace(number(row.Must)+" "+row.Unit)))
		default:
			met++
		}
		run++
	}
	text := fmt.Sprintf("%d of %d goals are met", met, run)
	if len(missed) > 0 {
		text += ". Not met: " + strings.Join(missed, "; ")
	}
	return text + ".\n"
}
