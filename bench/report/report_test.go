package report_test

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/bench/machine"
	"github.com/pdmesh/pdmesh/bench/report"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

func TestMain(m *testing.M) {
	testkit.GoldenFlag()
	os.Exit(m.Run())
}

// example is a run in which some gates are met, some are not, and some were not run.
func example() *report.Run {
	r := &report.Run{
		Started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Took: 60, Commit: "abc1234",
		Machine: machine.Facts{CPU: "A processor", Cores: 2, Memory: 4096, Kernel: "Linux 6.1", Go: "go1.26.0", Files: 20000},
		Config: report.Config{
			Workloads: []string{"small", "open1000", "idle1000"}, Targets: []string{"two-hop", "nginx", "pdmesh", "vllm-router"}, Repeats: 3, Seconds: 5,
			Engine: "fast", Connector: "nixl", Pinned: true, Awake: true, ProxyFlags: []string{"--upstream fast"}, Seed: 1,
		},
		Notes: []string{"A note for the reader."},
		Idle:  []machine.Speed{{Mean: 450, Best: 480}, {Mean: 400, Best: 500}, {Mean: 500, Best: 500}},
		Calm:  &report.Calm{Patience: 600, Waited: 61.5, Best: 14.2, Tolerated: 1.15, Begun: []float64{14.2, 21, 16, 15.5}, Anyway: 1},
	}
	for i := range 3 {
		n := uint64(i)
		r.Cells = append(r.Cells,
			report.Cell{Workload: "small", Target: "two-hop", Repeat: i, Seconds: 5, Right: 250_000 + n*5000, TTFT: report.Times{Count: 9, P50: 0.5, P99: 1.25}},
			report.Cell{Workload: "small", Target: "nginx", Repeat: i, Skipped: "not installed"},
			report.Cell{
				Workload: "small", Target: "pdmesh", Repeat: i, Seconds: 5, Right: 200_000 - n*2000, CPU: 4.9, RSSPeak: 50_000, RSSIdle: 40_000,
				Clients: 32, Prompt: 128, TTFT: report.Times{Count: 9, P50: 0.75, P99: 2},
			},
			report.Cell{Workload: "open1000", Target: "two-hop", Repeat: i, Seconds: 5, Right: 2500, Tokens: 480_000, Open: 1000, ITL: report.Times{Count: 9, P50: 10, P99: 11}},
			report.Cell{
				Workload: "open1000", Target: "pdmesh", Repeat: i, Seconds: 5, Right: 2500, Tokens: 400_000, Events: 407_500, Open: 1000, Clients: 1000, Prompt: 512,
				CPU: 4, RSSIdle: 20_000, RSS: 60_000, RSSPeak: 61_000, ITL: report.Times{Count: 9, P50: 10, P99: 13},
			},
			report.Cell{Workload: "small", Target: "vllm-router", Repeat: i, Seconds: 5, Right: 100_000, CPU: 4.9},
			report.Cell{Workload: "open1000", Target: "nginx", Repeat: i, Seconds: 5, Right: 3750, Tokens: 480_000, Open: 1000, CPU: 2.5 + 0.1*float64(n)},
			report.Cell{Workload: "idle1000", Target: "pdmesh", Repeat: i, Seconds: 5, Tokens: 2500, Open: 1000, Clients: 1000, RSSIdle: 20_000, RSS: 40_000},
			report.Cell{Workload: "idle1000", Target: "vllm-router", Repeat: i, Seconds: 5, Tokens: 2500, Open: 1000, Clients: 1000, RSSIdle: 30_000, RSS: 55_000})
	}
	last := slices.IndexFunc(r.Cells, func(c report.Cell) bool {
		return c.Workload == "open1000" && c.Target == "pdmesh" && c.Repeat == 2
	})
	r.Cells[last].Broken = 1
	r.Cells[last].Problems = []string{"broken answer: the connection\nended | in event 3"}
	return r
}

// A probe that failed is told, whether or not others did not.
func TestProbeThatFailed(t *testing.T) {
	t.Parallel()
	for _, begun := range [][]float64{nil, {14.2}} {
		r := example()
		r.Calm.Problem, r.Calm.Begun = "nobody answers", begun
		if text := page(r); strings.Count(text, "nobody answers") != 1 {
			t.Errorf("after %v:\n%.2000s", begun, text)
		}
	}
}

// Where nginx ran, its CPU per request is the measure of the machine.
func TestBesideNginx(t *testing.T) {
	t.Parallel()
	r := example()
	for i := range r.Cells {
		if c := &r.Cells[i]; c.Target == "nginx" && c.Repeat > 0 {
			c.Skipped, c.Seconds, c.Right, c.CPU = "", 5, 250_000, 4.5+0.5*float64(c.Repeat) // 20 and 22 µs
		}
	}
	text := page(r)
	if want := "| 128 B, 1 token | 21 µs | 24.9 µs | 3.87 µs | 3 … 4.75 | 1.19 | 1.14 … 1.24 |"; !strings.Contains(section(text, "#### Beside nginx"), want) {
		t.Errorf("%q is not in\n%s", want, text)
	}
	if strings.Contains(text, "| 64-token stream |") {
		t.Error("a workload that was not run stands beside nginx")
	}
}

// Where the floor ran, ours is set next to it, and its loss with many instances
// beside ours.
func TestBesideFloor(t *testing.T) {
	t.Parallel()
	r := example()
	for i := range 3 {
		cell := func(workload, target string, right uint64, cpu float64) {
			r.Cells = append(r.Cells, report.Cell{Workload: workload, Target: target, Repeat: i, Seconds: 5, Right: right, CPU: cpu})
		}
		if i > 0 { // a repeat without the floor counts on neither side
			cell("small", "floor", 250_000, 3.75+0.25*float64(i)) // 16 and 17 µs, against 24.75 and 25
		}
		cell("stream", "floor", 15_000, 4.5) // 300 µs
		cell("stream", "pdmesh", 15_000, 4.2)
		cell("stream", "two-hop", 20_000, 0) // 250 µs
		cell("quiet", "floor", 200_000, 4)
		cell("churn", "floor", 196_000-4000*uint64(i), 4.312)
		cell("quiet", "pdmesh", 100_000, 4)
		cell("churn", "pdmesh", 90_000, 4.5)
	}
	testkit.Golden(t, filepath.Join("testdata", "floor.md"), []byte(section(page(r), "#### Beside floor")))

	r = example()
	if text := page(r); strings.Contains(text, "floor") {
		t.Errorf("it speaks of a floor that did not run:\n%s", text)
	}
}

// page is the report of one machine.
func page(r *report.Run) string { return report.Page([]report.Measured{{Name: "a", Run: r}}) }

// section is the part of a text from a heading to the next one.
func section(text, heading string) string {
	_, rest, _ := strings.Cut(text, heading)
	body, _, _ := strings.Cut(rest, "\n#")
	return heading + body
}

func TestPage(t *testing.T) {
	t.Parallel()
	r := example()
	testkit.Golden(t, filepath.Join("testdata", "report.md"), []byte(report.Page([]report.Measured{{Name: "a", Run: r, Plots: []report.Plot{{File: "a/x.svg", Title: "A plot"}}}})))
}

// Several machines have a table side by side and a section each, the newest first.
func TestSeveralMachines(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := report.ReadAll(dir); err == nil || !strings.Contains(err.Error(), "there is no") {
		t.Errorf("an empty directory: %v", err)
	}
	old := &report.Run{
		Started: time.Date(2025, 1, 2, 0, 0, 0, 0, time.UTC), Commit: "0ldc0de", Config: report.Config{Repeats: 1},
		Cells: []report.Cell{{Workload: "small", Target: "pdmesh", Seconds: 1, Right: 10, CPU: 1}, {Workload: "small", Target: "vllm-router", Seconds: 1, Right: 10, CPU: 4}},
	}
	for name, r := range map[string]*report.Run{"a-older": old, "b-newer": example()} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := r.Write(filepath.Join(dir, name, "result.json")); err != nil {
			t.Fatal(err)
		}
	}
	all, err := report.ReadAll(dir)
	if err != nil {
		t.Fatal(err)
	}
	text := report.Page(all)
	for _, want := range []string{
		"| | at most | b-newer | a-older |",
		"| 128 B, 1 token: CPU per request / vllm-router | 0.60 | 0.51 | 0.25 |",
		"| 1,000 idle streams: memory per stream / vllm-router | 0.65 | 0.80, **NOT MET** | – |",
		"| [a-older](#a-older) | 2025-01-02 | `0ldc0de` |", "2 of 2 |", "\n## a-older\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%.4000s", want, text)
		}
	}
	if strings.Index(text, "\n## b-newer\n") > strings.Index(text, "\n## a-older\n") {
		t.Error("the older run comes first")
	}
}

func TestNameOf(t *testing.T) {
	t.Parallel()
	for cpu, want := range map[string]string{
		"AMD EPYC": "amd-epyc", "Intel(R) Xeon(R) Processor": "intel-xeon", "Intel(R) Core(TM) i7-8700K CPU @ 3.70GHz": "intel-core-i7-8700k", "": "unknown",
	} {
		if got := report.NameOf(machine.Facts{CPU: cpu}); got != want {
			t.Errorf("%q: %q, want %q", cpu, got, want)
		}
	}
}

func TestVerdicts(t *testing.T) {
	t.Parallel()
	want := map[string]report.Verdict{
		"128 B, 1 token: CPU per request / vllm-router":                      report.Met, // 0.50
		"1,000 streams of 128 tokens at 10 ms: CPU per stream / vllm-router": report.NotRun,
		"1,000 idle streams: memory per stream / vllm-router":                report.Missed, // 0.80
		"64 KiB prompt: CPU per request / vllm-router":                       report.NotRun,
		"wrong, cut, failed, misrouted or not aborted requests in any run":   report.Missed,
	}
	for _, row := range example().Rows() {
		if v, ok := want[row.Text]; ok {
			if row.Verdict() != v {
				t.Errorf("%s: %v of %v is %q, want %q", row.Text, row.Median(), row.Values, row.Verdict(), v)
			}
			delete(want, row.Text)
		}
	}
	if len(want) > 0 {
		t.Errorf("no rows for %v", want)
	}
}

// TestOneWrongAnswerFails: it may not vanish in a median.
func TestOneWrongAnswerFails(t *testing.T) {
	t.Parallel()
	r := example()
	rows := r.Rows()
	if last := rows[len(rows)-1]; last.Verdict() != report.Missed {
		t.Errorf("one broken answer in one of three repeats is %q (%v)", last.Verdict(), last.Values)
	}
}

func TestWriteAndRead(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "r.json")
	r := example()
	if err := r.Write(path); err != nil {
		t.Fatal(err)
	}
	again, err := report.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := page(r), page(again); a != b {
		t.Error("the report from the file is another one")
	}
	if err := os.WriteFile(path, []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := report.Read(path); err == nil || !strings.Contains(err.Error(), "not what a run writes") {
		t.Errorf("error %v does not say what is wrong with the file", err)
	}
}

func TestRenew(t *testing.T) {
	t.Parallel()
	r := &report.Measured{Name: "a", Run: example()}
	text, ok := r.Renew("before\n" + report.Begin + "\nold\n" + report.End + "\nafter\n")
	if !ok || strings.Contains(text, "old") || !strings.HasPrefix(text, "before\n") || !strings.HasSuffix(text, "\nafter\n") || !strings.Contains(text, "abc1234") {
		t.Errorf("%v:\n%s", ok, text)
	}
	for _, want := range []string{"| | pdmesh | pdmesh, `--upstream std` | vllm-router | nginx, one hop |", "| prompt of 128 B, 1 token: CPU for a request | 24.7 µs | – | 49.0 µs | – |", "1 of 3 gates are met. Not met: "} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if again, _ := r.Renew(text); again != text {
		t.Error("a second time changes it")
	}
	for _, s := range []string{"", "no marks", report.Begin + " without its end"} {
		if got, ok := r.Renew(s); ok || got != s {
			t.Errorf("%q became %q", s, got)
		}
	}
}

func TestDrawingsAreXML(t *testing.T) {
	t.Parallel()
	drawings := example().Drawings()
	if len(drawings) < 3 {
		t.Fatalf("%d drawings", len(drawings))
	}
	for _, d := range drawings {
		dec := xml.NewDecoder(strings.NewReader(d.SVG))
		for {
			if _, err := dec.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", d.File, err)
			}
		}
	}
}

// Of a repeat's turns the median counts: one turn in a busy moment says nothing.
func TestTurns(t *testing.T) {
	t.Parallel()
	r := example()
	for i := range r.Config.Repeats {
		for turn, right := range []uint64{96_000, 50_000, 97_000} { // after 100,000: 4, 50 and 3 %
			quiet := report.Cell{Workload: "quiet", Target: "pdmesh", Repeat: i, Turn: turn, Seconds: 5, Right: 100_000, CPU: 4}
			churn := quiet
			churn.Workload, churn.Right = "churn", right
			if i == 1 && turn == 0 {
				churn.Skipped = "no more sockets" // then it is between 50 and 3
			}
			r.Cells = append(r.Cells, quiet, churn)
		}
	}
	for i := range r.Cells {
		if c := r.Cells[i]; c.Workload == "quiet" || c.Workload == "churn" {
			c.Target = "floor"
			r.Cells = append(r.Cells, c)
		}
	}
	if got, want := page(r), "| pdmesh | 4.00 % | 4.00 … 26.5 |"; !strings.Contains(got, want) {
		t.Errorf("%q is not in\n%s", want, got)
	}
}

// A wrong answer with the standard library's client counts too.
func TestWrongAnswerOfStdFails(t *testing.T) {
	t.Parallel()
	r := &report.Run{Config: report.Config{Repeats: 1}, Cells: []report.Cell{
		{Workload: "small", Target: "pdmesh", Seconds: 1, Right: 10}, {Workload: "small", Target: "pdmesh-std", Seconds: 1, Right: 9, Wrong: 1},
	}}
	rows := r.Rows()
	if last := rows[len(rows)-1]; last.Verdict() != report.Missed {
		t.Errorf("a wrong answer of pdmesh-std is %q (%v)", last.Verdict(), last.Values)
	}
}
