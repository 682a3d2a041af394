package report_test

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/bench/machine"
	"github.com/pdmesh/pdmesh/bench/report"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

func TestMain(m *testing.M) {
	testkit.GoldenFlag()
	os.Exit(m.Run())
}

// example returns a run with gates that are met, missed and not run.
func example() *report.Run {
	r := &report.Run{
		Started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Commit: "abc1234",
		Machine: machine.Facts{CPU: "AMD EPYC", Cores: 2, Memory: 4096, Kernel: "Linux 6.1", Go: "go1.26.0"},
		Config: report.Config{
			Workloads: []string{"small", "open1000", "idle1000"}, Targets: []string{"pdmesh", "vllm-router", "smg"}, Repeats: 3, Seconds: 5,
			ProxyFlags: []string{"--upstream own"},
		},
		Notes: []string{"A note."},
	}
	for i := range 3 {
		n := uint64(i)
		r.Cells = append(r.Cells,
			report.Cell{Workload: "small", Target: "pdmesh", Repeat: i, Seconds: 5, Right: 200_000 - n*2000, CPU: 4.9, TTFT: report.Times{Count: 9, P99: 2}},
			report.Cell{Workload: "small", Target: "vllm-router", Repeat: i, Seconds: 5, Right: 100_000, CPU: 4.9},
			report.Cell{Workload: "open1000", Target: "pdmesh", Repeat: i, Seconds: 5, Right: 2500, Tokens: 400_000, Open: 1000, CPU: 4, RSSIdle: 20_000, RSS: 60_000, ITL: report.Times{Count: 9, P99: 13}},
			report.Cell{Workload: "open1000", Target: "vllm-router", Repeat: i, Seconds: 5, Right: 3750, Tokens: 480_000, Open: 1000, CPU: 2.5 + 0.1*float64(n)},
			report.Cell{Workload: "small", Target: "smg", Repeat: i, Skipped: report.NotInstalled},
			report.Cell{Workload: "open1000", Target: "smg", Repeat: i, Skipped: report.NotInstalled})
	}
	r.Cells[14].Failed, r.Cells[14].Problems = 1, []string{"the connection\nended"}
	return r
}

func TestPage_Golden(t *testing.T) {
	t.Parallel()
	testkit.Golden(t, filepath.Join("testdata", "report.md"), []byte(report.Page([]report.Measured{{Name: "amd-epyc", Run: example()}})))
}

// TestPage_CheckedIn compares the page in docs with the figures next to it.
func TestPage_CheckedIn(t *testing.T) {
	t.Parallel()
	const dir = "../../docs/performance"
	all, err := report.ReadAll(dir)
	require.NoError(t, err)
	if got, err := os.ReadFile(filepath.Join(dir, "README.md")); err != nil || string(got) != report.Page(all) {
		t.Errorf("the page is not that of the figures: run make bench-report (%v)", err)
	}
	for _, m := range all {
		for _, p := range m.Run.Plots() {
			if got, err := os.ReadFile(filepath.Join(dir, m.Name, p.File)); err != nil || string(got) != p.SVG {
				t.Errorf("%s is not that of the figures: run make bench-report (%v)", p.File, err)
			}
		}
	}
}

func TestRun_Gates(t *testing.T) {
	t.Parallel()
	r := example()
	var got []string
	for _, g := range r.Gates() {
		got = append(got, g.Verdict())
	}
	want := "met,not run,not run,**missed**,not run,**missed**"
	assert.Equal(t, want, strings.Join(got, ","), "verdicts %v", got)
	if missed := r.Missed(); !strings.Contains(missed, "1,000 streams") || !strings.Contains(missed, "bad requests in any workload: 1, must be at most 0") || strings.Contains(missed, "128 B") {
		t.Errorf("missed: %s", missed)
	}
	// A workload that did not run through our proxy counts as bad.
	r.Cells = append(r.Cells, report.Cell{Workload: "idle1000", Target: "pdmesh", Repeat: 2, Skipped: "no correct responses"})
	assert.Contains(t, r.Missed(), "bad requests in any workload: 2")
}

func TestRun_Plots(t *testing.T) {
	t.Parallel()
	plots := example().Plots()
	require.Equal(t, 2, len(plots), "plots")
	for _, p := range plots {
		d := xml.NewDecoder(strings.NewReader(p.SVG))
		for {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", p.File, err)
			}
		}
		assert.True(t, strings.Contains(p.SVG, ">vllm-router<") && !strings.Contains(p.SVG, "smg"),
			"%s has the wrong bars:\n%s", p.File, p.SVG)
	}
}

func TestRun_Files(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := report.ReadAll(dir); err == nil {
		t.Error("no error without figures")
	}
	for name, day := range map[string]int{"old": 1, "new": 2} {
		r := example()
		r.Started = time.Date(2026, 1, day, 0, 0, 0, 0, time.UTC)
		require.NoError(t, os.Mkdir(filepath.Join(dir, name), 0o700))
		require.NoError(t, r.Write(filepath.Join(dir, name, "result.json")))
	}
	all, err := report.ReadAll(dir)
	assert.True(t, err == nil && len(all) == 2 && all[0].Name == "new" && len(all[0].Run.Cells) == len(example().Cells),
		"%v, %v", all, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "new", "result.json"), []byte("{"), 0o600))
	if _, err := report.ReadAll(dir); err == nil {
		t.Error("no error for a damaged file")
	}
}

func TestRun_Against(t *testing.T) {
	t.Parallel()
	r := report.Run{Config: report.Config{Workloads: []string{"w"}, Targets: []string{"a", "b", "c"}, Repeats: 3}}
	for repeat, us := range []float64{100, 200, 400} {
		for target, f := range map[string]float64{"a": 1, "b": 1.02 + 0.01*float64(repeat)} {
			r.Cells = append(r.Cells, report.Cell{Workload: "w", Target: target, Repeat: repeat, Right: 1000, CPU: us * f / 1000})
		}
	}
	r.Cells = append(r.Cells, report.Cell{Workload: "w", Target: "c", Skipped: report.NotInstalled})
	var out strings.Builder
	require.NoError(t, r.Against(&out, "a"))
	got := strings.Join(strings.Fields(out.String()), " ")
	if !strings.Contains(got, "w a 200.0 +0.0 % +0.0 +0.0") || !strings.Contains(got, "w b 206.0 +3.0 % +2.0 +4.0") || strings.Contains(got, " c ") {
		t.Error(out.String())
	}
}

func TestNameOf(t *testing.T) {
	t.Parallel()
	for cpu, want := range map[string]string{
		"Intel(R) Xeon(R) Processor @ 2.70GHz": "intel-xeon", "AMD EPYC 7B13": "amd-epyc-7b13", "": "unknown",
	} {
		assert.Equal(t, want, report.NameOf(machine.Facts{CPU: cpu}), "%q", cpu)
	}
}
