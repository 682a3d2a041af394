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
func (m *Measured) Renew(text string) (string, bool) {
	head, rest, ok := strings.Cut(text, Begin)
	if !ok {
		return text, false
	}
	_, tail, ok := strings.Cut(rest, End)
	if !ok {
		return text, false
	}
	r := m.Run
	about := fmt.Sprintf("Commit `%s`, %s, repeats: %d; all figures are in [docs/performance](docs/performance/README.md#%s).", r.Commit, r.Machine.CPU, r.Config.Repeats, m.Name)
	return head + Begin + "\n" + r.summary() + "\n" + r.standing() + about + "\n" + End + tail, true
}

// summary is what matters most of ours, with the same of others.
func (r *Run) summary() string {
	columns := []struct{ target, title string }{
		{mesh, "pdmesh"}, {meshStd, "pdmesh, `--upstream std`"}, {router, "vllm-router"}, {nginx, "nginx, one hop"},
	}
	var b, rule strings.Builder
	b.WriteString("| |")
	for _, c := range columns {
		fmt.Fprintf(&b, " %s |", c.title)
		rule.WriteString("---|")
	}
	fmt.Fprintf(&b, "\n|---|%s\n", rule.String())
	for _, line := range []struct {
		text, workload, unit string
		value                figure
	}{
		{"prompt of 128 B, 1 token: CPU for a request", "small", "µs", cpuMicros},
		{"prompt of 64 KiB: CPU for a request", "prompt64k", "µs", cpuMicros},
		{"prompt of 1 MiB: CPU for a request", "prompt1m", "µs", cpuMicros},
		{"stream of 128 tokens at 10 ms, 200 at once: CPU for a stream", "open200", "ms", streamMillis},
		{"the same, 1,000 at once", "open1000", "ms", streamMillis},
		{"memory for an idle stream, 1,000 of them", "idle1000", "KiB", kibPerStream},
		{"memory for an open stream, 5,000 of them", "open5000", "KiB", kibPerStream},
	} {
		fmt.Fprintf(&b, "| %s |", line.text)
		for _, c := range columns {
			fmt.Fprintf(&b, " %s |", r.medianOf(line.workload, c.target, line.unit, line.value))
		}
		b.WriteString("\n")
	}
	return b.String()
}

// medianOf spells a target's figure over all repeats; a dash if there is none.
func (r *Run) medianOf(workload, target, unit string, value figure) string {
	var values []float64
	for repeat := range r.Config.Repeats {
		if c := r.cell(workload, target, repeat); c != nil {
			if v, ok := value(c); ok {
				values = append(values, v)
			}
		}
	}
	if len(values) == 0 {
		return "–"
	}
	return number(median(values)) + " " + unit
}

// gates counts those that are met and those that were run, and has the rows of the others.
func (r *Run) gates() (met, run int, missed []Row) {
	for _, row := range r.Rows() {
		switch row.Verdict() {
		case NotRun:
			continue
		case Missed:
			missed = append(missed, row)
		default:
			met++
		}
		run++
	}
	return met, run, missed
}

// standing reports how many gates are met, and names those that are not.
func (r *Run) standing() string {
	met, run, rows := r.gates()
	var missed []string
	for _, row := range rows {
		missed = append(missed, fmt.Sprintf("%s (%s, must be %s at most)", row.Text, number(row.Median()), number(row.Must)))
	}
	text := fmt.Sprintf("%d of %d gates are met", met, run)
	if len(missed) > 0 {
		text += ". Not met: " + strings.Join(missed, "; ")
	}
	return text + ".\n"
}
