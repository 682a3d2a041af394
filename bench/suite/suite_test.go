package suite_test

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/bench/report"
	"github.com/pdmesh/pdmesh/bench/suite"
	"github.com/pdmesh/pdmesh/bench/target"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// TestRun runs every workload, much smaller, without any proxy.
func TestRun(t *testing.T) {
	t.Parallel()
	var workloads []suite.Workload
	for _, w := range suite.Workloads() {
		if w.Membership {
			continue
		}
		w.Conns = min(w.Conns, 20)
		w.ITL = min(w.ITL, 5*time.Millisecond)
		w.Ramp = min(w.Ramp, 10*time.Millisecond)
		workloads = append(workloads, w)
	}
	for _, engine := range []string{suite.FastEngine, suite.StrictEngine} {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			chosen := workloads
			if engine == suite.StrictEngine {
				chosen = workloads[:2]
			}
			run := &report.Run{Config: report.Config{Repeats: 1}}
			var progress strings.Builder
			err := suite.Run(t.Context(), nil, suite.Options{
				Workloads: chosen, Targets: []target.Spec{{Name: "direct", Kind: target.Direct}, {Name: "two-hop", Kind: target.TwoHop}},
				Repeats: 1, Window: 300 * time.Millisecond, Warmup: 10 * time.Millisecond, Engine: engine, Connector: "nixl", Seed: 1, Progress: &progress,
			}, run)
			if err != nil {
				t.Fatal(err)
			}
			if len(run.Cells) != 2*len(chosen) {
				t.Fatalf("%d cells, want %d", len(run.Cells), 2*len(chosen))
			}
			for _, c := range run.Cells {
				if c.Skipped != "" || c.Bad() > 0 || c.NotAborted > 0 || c.Tokens == 0 {
					t.Errorf("%+v", c)
				}
				if c.Workload == "vanish5000" && (c.Aborted <= 0 || c.Left == 0) {
					t.Errorf("nobody vanished: %+v", c)
				}
				if !strings.Contains(progress.String(), c.Workload) {
					t.Errorf("no line about %s", c.Workload)
				}
			}
			if text := report.Page([]report.Measured{{Name: "here", Run: run}}); !strings.Contains(text, "two-hop") {
				t.Errorf("the report lacks what ran:\n%s", text)
			}
		})
	}
}

// A target that is not there, or does not answer, leaves those next to it alone.
func TestBesideOneThatFails(t *testing.T) {
	t.Parallel()
	workloads, err := suite.Choose([]string{"small"})
	if err != nil {
		t.Fatal(err)
	}
	lab, err := target.NewLab(target.Options{BinDir: t.TempDir(), Self: "/bin/false"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := lab.Close(); err != nil {
			t.Error(err)
		}
	}()
	run := &report.Run{Config: report.Config{Repeats: 1}}
	err = suite.Run(t.Context(), lab, suite.Options{
		Workloads: workloads, Targets: []target.Spec{
			{Name: "nginx", Kind: target.Nginx, Program: "no-such-nginx"}, {Name: "two-hop", Kind: target.TwoHop},
			{Name: "floor", Kind: target.Floor}, {Name: "direct", Kind: target.Direct},
		},
		Repeats: 1, Window: 1100 * time.Millisecond, Warmup: 10 * time.Millisecond, Idle: 10 * time.Millisecond,
		Engine: suite.FastEngine, Connector: "nixl", Seed: 1, Progress: io.Discard,
	}, run)
	if err != nil {
		t.Fatal(err)
	}
	if len(run.Cells) != 4 {
		t.Fatalf("%d cells, want 4", len(run.Cells))
	}
	for i, c := range run.Cells {
		if failed := i%2 == 0; (c.Skipped != "") != failed {
			t.Errorf("%s: skipped %q", c.Target, c.Skipped)
		}
		if i%2 == 1 && (c.Right == 0 || c.Bad() > 0 || c.Seconds < 1.1) {
			t.Errorf("%+v", c)
		}
	}
	if run.Cells[0].Skipped != "not installed" {
		t.Errorf("nginx was skipped: %s", run.Cells[0].Skipped)
	}
	if len(run.Idle) != 1 || run.Idle[0].Mean <= 0 || run.Idle[0].Best < run.Idle[0].Mean {
		t.Errorf("idle %+v", run.Idle)
	}
}

func TestChoose(t *testing.T) {
	t.Parallel()
	all, err := suite.Choose(nil)
	if err != nil || len(all) != len(suite.Workloads()) {
		t.Errorf("%d workloads, %v", len(all), err)
	}
	got, err := suite.Choose([]string{"churn", "small"})
	if err != nil || len(got) != 3 || got[1].Name != "quiet" {
		t.Errorf("%+v, %v: churn needs what it is compared with", got, err)
	}
	if _, err := suite.Choose([]string{"smal"}); !errors.Is(err, suite.ErrWorkload) || !strings.Contains(err.Error(), "small") {
		t.Errorf("error %v does not say what there is", err)
	}
}
