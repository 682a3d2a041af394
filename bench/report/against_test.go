package report_test

import (
	"strings"
	"testing"

	"github.com/pdmesh/pdmesh/bench/report"
)

// The difference is that of two cells of one repeat, and what was not measured is left out.
func TestAgainst(t *testing.T) {
	t.Parallel()
	r := report.Run{Config: report.Config{Workloads: []string{"w"}, Targets: []string{"a", "b", "c"}}}
	add := func(target string, repeat int, us float64) {
		r.Cells = append(r.Cells, report.Cell{Workload: "w", Target: target, Repeat: repeat, Right: 1000, Total: report.Times{Count: 1000}, CPU: us / 1000})
	}
	for repeat, us := range []float64{100, 200, 400} {
		add("a", repeat, us)
		add("b", repeat, us*(1.02+0.01*float64(repeat)))
	}
	r.Cells = append(r.Cells, report.Cell{Workload: "w", Target: "c", Skipped: "not installed"})
	var out strings.Builder
	if err := r.Against(&out, "a"); err != nil {
		t.Fatal(err)
	}
	got := strings.Join(strings.Fields(out.String()), " ")
	if !strings.Contains(got, "w a 200.0 +0.0 % +0.0 +0.0") || !strings.Contains(got, "w b 206.0 +3.0 % +2.0 +4.0") || strings.Contains(got, " c ") {
		t.Error(out.String())
	}
}
