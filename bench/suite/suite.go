package suite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/pdmesh/pdmesh/bench/awake"
	"github.com/pdmesh/pdmesh/bench/machine"
	"github.com/pdmesh/pdmesh/bench/report"
	"github.com/pdmesh/pdmesh/bench/target"
)

// Options is what to run.
type Options struct {
	Workloads []Workload
	Targets   []target.Spec
	Repeats   int
	// Window is how long each cell is measured, Warmup how long it runs before.
	Window, Warmup time.Duration
	Engine         string
	Connector      string
	// Idle is how long the machine is looked at before each repeat, with nothing to do.
	Idle time.Duration
	// Awake keeps this process, with engines and generator, from sleeping while a
	// target runs, so that no target pays for waking it. It takes all of its core.
	Awake bool
	// Patience is how long may be waited in all for the machine to be quiet.
	Patience time.Duration
	// Quiet is what the probe shows when it is, in µs; 0 if that is not known.
	Quiet float64
	// Rate makes every closed loop an open one.
	Rate float64
	Seed uint64
	// Files is the limit of descriptors of a process.
	Files int
	// Progress gets a line per cell.
	Progress io.Writer
}

// Run runs everything. A cell that cannot run is noted and the others go on;
// the error is about what makes all of it pointless. What was measured until
// ctx ends is in the run.
func Run(ctx context.Context, lab *target.Lab, o Options, run *report.Run) error {
	var etcd *target.Etcd
	if slices.ContainsFunc(o.Targets, func(s target.Spec) bool { return s.Kind == target.Mesh }) {
		var err error
		if etcd, err = lab.StartEtcd(ctx); err != nil {
			return err
		}
		defer etcd.Close()
	}
	var quiet *calm
	if o.Patience > 0 {
		run.Calm = new(report.Calm)
		c, closing, err := newCalm(ctx, lab, &o, run.Calm)
		defer closing()
		if err != nil {
			return fmt.Errorf("probe of the machine: %w", err)
		}
		quiet = c
	}
	n := 0
	for repeat := range o.Repeats {
		run.Idle = append(run.Idle, machine.Idle(o.Idle))
		for _, s := range steps(o.Workloads, o.Targets) {
			var cells group
			for _, p := range s.pairs {
				n++
				cells = append(cells, &cell{o: &o, lab: lab, etcd: etcd, w: fitted(p.workload, o.Files, run), spec: p.spec, number: n})
			}
			if s.sensitive() {
				cells[0].calm = quiet
			}
			var got []report.Cell
			if err := awakeWhile(o.Awake, func() error { got = cells.run(ctx); return nil }); err != nil {
				return err
			}
			for i, got := range got {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				got.Workload, got.Target, got.Repeat, got.Turn = s.pairs[i].workload.Name, s.pairs[i].spec.Name, repeat, s.turn
				run.Cells = append(run.Cells, got)
				fmt.Fprintln(o.Progress, line(&got))
			}
		}
	}
	return nil
}

// awakeWhile runs f, and keeps this process from sleeping meanwhile if it is to.
func awakeWhile(keep bool, f func() error) (err error) {
	if !keep {
		return f()
	}
	guard, err := awake.Keep()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, guard.Stop()) }()
	return f()
}

// step is what is up at one time: one cell, or those that take turns.
type step struct {
	pairs []pair
	turn  int
}

// pair is what a cell is made of.
type pair struct {
	workload Workload
	spec     target.Spec
}

// steps is the order of a repeat: each workload with one target after the other,
// or with all of them side by side, and for each target those that have turns.
func steps(workloads []Workload, targets []target.Spec) (out []step) {
	for len(workloads) > 0 {
		n := 1
		for workloads[0].Turns > 0 && n < len(workloads) && workloads[n].Turns > 0 {
			n++
		}
		var beside []pair
		for _, spec := range targets {
			if workloads[0].Membership && spec.Kind != target.Mesh && spec.Kind != target.Floor {
				continue
			}
			if workloads[0].Own && spec.Kind != target.Mesh && spec.Kind != target.Direct && spec.Kind != target.TwoHop {
				continue
			}
			if workloads[0].Beside {
				beside = append(beside, pair{workloads[0], spec})
				continue
			}
			var own []pair
			for _, w := range workloads[:n] {
				own = append(own, pair{w, spec})
			}
			for turn := range max(1, workloads[0].Turns) {
				out = append(out, step{own, turn})
			}
		}
		if len(beside) > 0 {
			out = append(out, step{pairs: beside})
		}
		workloads = workloads[n:]
	}
	return out
}

// fitted lowers the number of clients to what the limit of descriptors lets a
// proxy hold: two for each client.
func fitted(w Workload, files int, run *report.Run) Workload {
	const others = 3000
	if most := (files - others) / 2; files > 0 && w.Conns > most {
		note := fmt.Sprintf("%s ran with %d clients instead of %d: a process may have %d descriptors here, and a proxy needs two for each client, and some more.", w.Name, most, w.Conns, files)
		if !slices.Contains(run.Notes, note) {
			run.Notes = append(run.Notes, note)
		}
		w.Conns = most
	}
	return w
}

func line(c *report.Cell) string {
	head := fmt.Sprintf("%d  %-11s %-10s ", c.Repeat+1, c.Workload, c.Target)
	if c.Skipped != "" {
		return head + "skipped: " + c.Skipped
	}
	s := fmt.Sprintf("%s%9.0f %-10s", head, c.Throughput(), c.Unit())
	if c.CPU > 0 {
		s += fmt.Sprintf("  %7.1f µs/request  %6.1f s/1M events", c.CPUPerRequest(), c.CPUPerMillionEvents())
	}
	s += fmt.Sprintf("  TTFT p50 %.2f ms", c.TTFT.P50)
	if c.ITL.Count > 0 {
		s += fmt.Sprintf("  ITL p99 %.2f ms", c.ITL.P99)
	}
	if c.Open > 0 && c.RSS > 0 {
		s += fmt.Sprintf("  %.1f KiB/stream", c.RSSPerStream())
	}
	if c.Aborted > 0 {
		s += fmt.Sprintf("  aborted after %.3f s", c.Aborted)
	}
	if c.Bad() > 0 || c.NotAborted > 0 || c.Violations > 0 || c.Bare > 0 {
		s += fmt.Sprintf("  BAD: %d wrong, %d broken, %d failed, %d violations, %d without a prefill, %d not aborted: %.500q",
			c.Wrong, c.Broken, c.Failed, c.Violations, c.Bare, c.NotAborted, c.Problems[:min(len(c.Problems), 3)])
	}
	return s
}

// skipped is the reason for a cell without figures.
func skipped(err error) report.Cell {
	if errors.Is(err, target.ErrAbsent) {
		return report.Cell{Skipped: "not installed"}
	}
	return report.Cell{Skipped: err.Error()}
}
