// Command report writes docs/reliability.md from the measurements of the fault tests.
//
//	report -in measured.json -commit $(git describe --always) > docs/reliability.md
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// entry is one line of the input.
type entry struct {
	Row    int     `json:"row"`
	Test   string  `json:"test"`
	Passed *bool   `json:"passed"`
	What   string  `json:"what"`
	Value  float64 `json:"value"`
	Bar    float64 `json:"bar"`
	Unit   string  `json:"unit"`
	Long   bool    `json:"long"`
}

func itoa(n int) string { return strconv.Itoa(n) }

func main() {
	in := flag.String("in", "", "file that PD_TEST_FAULT_REPORT named")
	commit := flag.String("commit", "unknown", "commit that was tested")
	flag.Parse()
	if err := run(*in, *commit, machine(), time.Now(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(1)
	}
}

func run(in, commit, machine string, now time.Time, w io.Writer) error {
	f, err := os.Open(in)
	if err != nil {
		return err
	}
	defer f.Close()
	entries, err := read(f)
	if err != nil {
		return err
	}
	return render(w, entries, commit, machine, now)
}

func read(r io.Reader) ([]entry, error) {
	var out []entry
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		var e entry
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		out = append(out, e)
	}
	return out, lines.Err()
}

// outcome is the result of one row.
type outcome struct {
	tests    []string
	measured []string
	missed   []string
	failed   bool
	run      bool
	long     bool
}

func judge(row int, entries []entry) outcome {
	var o outcome
	for _, e := range entries {
		if e.Row != row {
			continue
		}
		o.run = true
		name, _, _ := strings.Cut(e.Test, "/")
		if !slices.Contains(o.tests, name) {
			o.tests = append(o.tests, name)
		}
		if e.Passed != nil {
			o.failed = o.failed || !*e.Passed
			o.long = o.long || e.Long
			continue
		}
		text := e.What + ": **" + show(e.Value, e.Unit) + "**"
		hasBar := e.Unit == "count" || e.Bar > 0
		if hasBar {
			text += " (limit " + show(e.Bar, e.Unit) + ")"
		}
		o.measured = append(o.measured, text)
		if hasBar && e.Value > e.Bar {
			o.missed = append(o.missed, e.What+": "+show(e.Value, e.Unit)+" instead of "+show(e.Bar, e.Unit))
		}
	}
	return o
}

func (o outcome) verdict() string {
	switch {
	case !o.run:
		return "not run"
	case o.failed:
		return "**FAILED**"
	case len(o.missed) > 0:
		return "**not met**"
	default:
		return "met"
	}
}

func show(v float64, unit string) string {
	switch {
	case unit == "count":
		return strconv.FormatFloat(v, 'f', -1, 64)
	case v < 1:
		return strconv.FormatFloat(v*1000, 'f', 1, 64) + " ms"
	default:
		return strconv.FormatFloat(v, 'f', 2, 64) + " s"
	}
}

func render(w io.Writer, entries []entry, commit, machine string, now time.Time) error {
	var b strings.Builder
	b.WriteString(`# Reliability: the fault matrix

` + "`make reliability`" + ` writes this page; do not edit it by hand. The tests start etcd members,
proxies, agents and simulated engines as processes on one machine. They kill and pause them,
wipe their data and cut their connections. [failures.md](failures.md) says what a client sees of a failure.

`)
	fmt.Fprintf(&b, "- Commit: `%s`\n- Machine: %s\n- Date: %s\n", commit, machine, now.UTC().Format("2 January 2006"))
	b.WriteString(`- Lease TTL 3 s and audit every 2 s, unless a row says otherwise. Outages are short, but
  longer than every TTL and deadline that they test. ` + "`PD_TEST_FAULT_LONG=1 make reliability`" + `
  uses long ones.
- A row is met when its test passes and every measured time is within its limit. The
  test also asserts what must not happen: a failed request, an instance that is lost, a key that changes.
- Each time is from a single run, while other tests were running. Read it as an order of magnitude.

`)
	var notMet, notRun []string
	var table strings.Builder
	table.WriteString("| row | fault | expected | limit | measured | verdict | test |\n|---|---|---|---|---|---|---|\n")
	for _, l := range matrix() {
		o := judge(l.row, entries)
		if o.failed || len(o.missed) > 0 {
			why := strings.Join(o.missed, "; ")
			if o.failed {
				why = strings.TrimPrefix(why+"; its test fails", "; ")
			}
			notMet = append(notMet, fmt.Sprintf("row %s (%s): %s", l.id(), l.fault, why))
		}
		if !o.run {
			notRun = append(notRun, fmt.Sprintf("row %s (%s)", l.id(), l.fault))
		}
		fmt.Fprintf(&table, "| %s | %s | %s | %s | %s | %s | %s |\n", l.id(), l.fault, l.expected, l.bar,
			strings.Join(o.measured, "<br>"), o.verdict(), strings.Join(o.tests, "<br>"))
	}
	list := func(title string, items []string) {
		if len(items) == 0 {
			return
		}
		fmt.Fprintf(&b, "%s\n\n", title)
		for _, i := range items {
			fmt.Fprintf(&b, "- %s\n", i)
		}
		b.WriteString("\n")
	}
	list("## Not met", notMet)
	list("## Not run", notRun)
	if len(notMet) == 0 && len(notRun) == 0 {
		b.WriteString("All rows are met.\n\n")
	}
	b.WriteString("## All rows\n\n")
	b.WriteString(table.String())
	_, err := io.WriteString(w, b.String())
	return err
}

// machine describes, in one line, the machine that ran the tests.
func machine() string {
	model, memory := "unknown processor", ""
	if raw, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for l := range strings.Lines(string(raw)) {
			if name, value, ok := strings.Cut(l, ":"); ok && strings.TrimSpace(name) == "model name" {
				model = strings.TrimSpace(value)
				break
			}
		}
	}
	if raw, err := os.ReadFile("/proc/meminfo"); err == nil {
		var kib int64
		if _, err := fmt.Sscanf(string(raw), "MemTotal: %d kB", &kib); err == nil {
			memory = fmt.Sprintf(", %d GiB", (kib+1<<19)>>20)
		}
	}
	return fmt.Sprintf("%d cores of %s%s, %s/%s, %s", runtime.NumCPU(), model, memory, runtime.GOOS, runtime.GOARCH, runtime.Version())
}
