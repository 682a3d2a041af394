// Package suite runs the workloads of the benchmark against its targets.
package suite

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/pdmesh/pdmesh/bench/answer"
	"github.com/pdmesh/pdmesh/bench/report"
	"github.com/pdmesh/pdmesh/bench/target"
)

// Options are the options of Run.
type Options struct {
	Workloads []Workload
	Targets   []target.Spec
	Repeats   int
	Window    time.Duration // measured for each cell
	Warmup    time.Duration // load before each measurement
	Files     int           // limit of descriptors of a process; 0 is no limit
	Progress  io.Writer     // gets a line for each cell
}

// Run runs all workloads against all targets, in repeats, and appends the cells to run. All
// targets of a workload run at the same time and get the load in turns. A target that
// fails does not affect the others. If ctx ends, the cells of complete workloads are in run.
func Run(ctx context.Context, lab *target.Lab, o Options, run *report.Run) error {
	var etcd *target.Etcd
	if slices.ContainsFunc(o.Targets, func(s target.Spec) bool { return s.Kind == target.Mesh }) {
		var err error
		if etcd, err = lab.StartEtcd(ctx); err != nil {
			return err
		}
		defer etcd.Close()
	}
	n := 0
	for repeat := range o.Repeats {
		for _, w := range o.Workloads {
			w = fitted(w, o.Files, run)
			cells := make([]*cell, len(o.Targets))
			for i, spec := range o.Targets {
				n++
				cells[i] = &cell{
					o: &o, lab: lab, etcd: etcd, w: w, spec: spec, prefix: fmt.Sprintf("/bench-%d", n),
					out: report.Cell{Workload: w.Name, Target: spec.Name, Repeat: repeat},
				}
			}
			measure(ctx, cells, repeat)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			for _, c := range cells {
				run.Cells = append(run.Cells, c.out)
				fmt.Fprintln(o.Progress, line(&c.out))
			}
		}
	}
	return nil
}

// measure runs the cells of one workload.
func measure(ctx context.Context, cells []*cell, repeat int) {
	for _, c := range cells {
		defer c.close()
		c.err = c.setUp(ctx)
	}
	// The speed of a virtual machine changes within seconds by more than the difference
	// between targets, so they take short turns if the responses are short.
	parts, warmup := 1, cells[0].o.Warmup
	if cells[0].w.ITL == 0 && len(cells) > 1 {
		const length = 500 * time.Millisecond
		parts = max(1, int(cells[0].o.Window/length))
	}
	for round := range parts {
		for i := range cells {
			c := cells[(repeat+round+i)%len(cells)] // no target always follows the same other one
			if c.err = cmp.Or(c.err, ctx.Err()); c.err == nil {
				c.err = c.part(ctx, c.o.Window/time.Duration(parts), warmup)
			}
		}
		warmup = min(warmup, 100*time.Millisecond)
	}
	for _, c := range cells {
		c.finish()
	}
}

// fitted returns w with the number of clients that the limit of descriptors permits: a
// proxy needs two for each client.
func fitted(w Workload, files int, run *report.Run) Workload {
	const others = 3000
	if most := (files - others) / 2; files > 0 && w.Conns > most {
		note := fmt.Sprintf("%s ran with %d clients instead of %d, because the limit of descriptors is %d.", w.Name, most, w.Conns, files)
		if !slices.Contains(run.Notes, note) {
			run.Notes = append(run.Notes, note)
		}
		w.Conns = most
	}
	return w
}

// line returns the progress of a cell.
func line(c *report.Cell) string {
	s := fmt.Sprintf("%d  %-10s %-14s ", c.Repeat+1, c.Workload, c.Target)
	if c.Skipped != "" {
		return s + "skipped: " + c.Skipped
	}
	perSecond, _ := c.Throughput()
	if v, ok := c.StreamKiB(); ok {
		cpu, _ := c.StreamMillis()
		s += fmt.Sprintf("%9.0f tokens/s    %8.2f ms CPU per 128 tokens  %6.1f KiB/stream  ITL p99 %.2f ms", perSecond, cpu, v, c.ITL.P99)
	} else {
		cpu, _ := c.CPUMicros()
		s += fmt.Sprintf("%9.0f requests/s  %8.1f µs CPU per request  TTFT p99 %.2f ms", perSecond, cpu, c.TTFT.P99)
	}
	if c.Bad() > 0 {
		s += fmt.Sprintf("  BAD: %d wrong, %d failed, %d refused by engines, %d without prefill: %.500q",
			c.Wrong, c.Failed, c.Violations, c.Bare, c.Problems[:min(len(c.Problems), 3)])
	}
	return s
}

// skipped returns the reason for a cell without figures, in one line.
func skipped(err error) string {
	if errors.Is(err, target.ErrAbsent) {
		return report.NotInstalled
	}
	return strings.Join(strings.Fields(err.Error()), " ")
}

// Workload is a load with a name.
type Workload struct {
	Name      string
	Shape     answer.Shape
	Conns     int
	ITL       time.Duration // between the tokens of a stream; 0 if responses are not streamed
	Hold      bool          // streams outlast the measurement
	Instances int           // of both roles; 0 means 4
	Extra     bool          // run only if it is named
}

// ramp is the time over which the clients of streams start.
const ramp = 2 * time.Second

// Workloads returns all workloads.
func Workloads() []Workload {
	whole := func(prompt int) answer.Shape { return answer.Shape{Prompt: prompt, Tokens: 1} }
	stream := func(tokens int) answer.Shape { return answer.Shape{Prompt: 512, Tokens: tokens, Stream: true} }
	const itl, endless = 10 * time.Millisecond, 999_999
	return []Workload{
		{Name: "small", Shape: whole(128), Conns: 32},
		{Name: "prompt2k", Shape: whole(2 << 10), Conns: 32},
		{Name: "prompt64k", Shape: whole(64 << 10), Conns: 16},
		{Name: "open200", Shape: stream(128), Conns: 200, ITL: itl},
		{Name: "open1000", Shape: stream(128), Conns: 1000, ITL: itl},
		{Name: "idle1000", Shape: stream(endless), Conns: 1000, ITL: 2 * time.Second, Hold: true},
		// All prompts begin differently, so a policy that remembers prompts stores each of them.
		{Name: "pick1000", Shape: whole(128), Conns: 32, Instances: 1000, Extra: true},
	}
}

// ErrUnknown is returned for a name that is not one of Workloads.
var ErrUnknown = errors.New("unknown workload")

// Choose returns the workloads with these names, in the order of Workloads; all but the
// extra ones without names.
func Choose(names []string) (out []Workload, err error) {
	wanted := make(map[string]bool)
	for _, n := range names {
		wanted[n] = true
	}
	var known []string
	for _, w := range Workloads() {
		if known = append(known, w.Name); wanted[w.Name] || len(names) == 0 && !w.Extra {
			out = append(out, w)
		}
		delete(wanted, w.Name)
	}
	for n := range wanted {
		return nil, fmt.Errorf("%w %q: must be one of %s", ErrUnknown, n, strings.Join(known, ", "))
	}
	return out, nil
}
