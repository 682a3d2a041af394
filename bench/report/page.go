package report

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/pdmesh/pdmesh/bench/machine"
)

// Measured is the newest run of one machine and its pictures.
type Measured struct {
	// Name is that of the machine's folder.
	Name  string
	Run   *Run
	Plots []Plot
}

// marks are what the names of processors have besides their name.
var marks = regexp.MustCompile(`\((r|tm)\)|\b(processor|cpu)\b|@.*`)

// NameOf is the name of a machine's folder, unless somebody gives another one: that of
// its processor.
func NameOf(f machine.Facts) string {
	words := strings.FieldsFunc(marks.ReplaceAllString(strings.ToLower(f.CPU), " "), func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < '0' || c > '9')
	})
	if len(words) == 0 {
		return "unknown"
	}
	return strings.Join(words, "-")
}

// ReadAll reads the runs of all machines, one in each folder below dir, the newest first.
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
		return nil, fmt.Errorf("read results: there is no %s", filepath.Join(dir, "MACHINE", "result.json"))
	}
	slices.SortStableFunc(all, func(a, b Measured) int { return b.Run.Started.Compare(a.Run.Started) })
	return all, nil
}

// Page is the report of all machines. Pictures are named in it by their paths below it.
func Page(all []Measured) string {
	var b strings.Builder
	b.WriteString("# What a request through the proxy costs\n\n")
	b.WriteString("`make bench` writes this page from the figures in `*/result.json`, one folder for each machine; `make bench-report` writes it again. Do not edit it by hand. " +
		"[bench/README.md](../../bench/README.md) describes how it is measured, and how to read the tables. [ADR 17](../adr/0017-keep-only-speed-that-pays-at-a-real-token-rate.md) describes the optimisations, and those that did not pay.\n\n")
	b.WriteString("| machine | date | commit | processor, kernel | repeats | gates met |\n|---|---|---|---|---|---|\n")
	for i := range all {
		r := all[i].Run
		met, run, _ := r.gates()
		fmt.Fprintf(&b, "| [%[1]s](#%[1]s) | %[2]s | `%[3]s` | %[4]s, %[5]d cores, %[6]s | %[7]d of %[8]s s | %[9]d of %[10]d |\n",
			all[i].Name, r.Started.Format("2006-01-02"), r.Commit, r.Machine.CPU, r.Machine.Cores, r.Machine.Kernel, r.Config.Repeats, number(r.Config.Seconds), met, run)
	}
	b.WriteString("\n## The gates\n\nA gate limits a ratio: what our proxy takes, divided by what another target takes in the same repeat. There are no other goals. " +
		"The figures of each machine were measured with the targets and workloads of the commit in the table above. A dash means that the gate was not run on this machine.\n\n")
	compare(&b, all)
	for i := range all {
		all[i].section(&b)
	}
	return b.String()
}

// compare sets the gates of all machines side by side.
func compare(b *strings.Builder, all []Measured) {
	b.WriteString("| | at most |")
	rows := make([][]Row, len(all))
	for i := range all {
		fmt.Fprintf(b, " %s |", all[i].Name)
		rows[i] = all[i].Run.Rows()
	}
	b.WriteString("\n|---|---|" + strings.Repeat("---|", len(all)) + "\n")
	for i := range rows[0] {
		fmt.Fprintf(b, "| %s | %s |", rows[0][i].Text, number(rows[0][i].Must))
		for _, of := range rows {
			switch row := &of[i]; row.Verdict() {
			case NotRun:
				b.WriteString(" – |")
			case Missed:
				fmt.Fprintf(b, " %s, **%s** |", number(row.Median()), Missed)
			default:
				fmt.Fprintf(b, " %s |", number(row.Median()))
			}
		}
		b.WriteString("\n")
	}
}
