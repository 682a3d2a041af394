package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/pdmesh/pdmesh/bench/ground"
	"github.com/pdmesh/pdmesh/bench/machine"
	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/cli/version"
)

// disaggregate compares the values of --disaggregate at several loads. All loads have the same
// length in time of the trace. The ways take turns, so that other work of the machine affects
// all of them.
func disaggregate(ctx context.Context, f *flags, stdout io.Writer) (err error) {
	if len(f.rates) == 0 || f.speed <= 0 || f.runs < 1 || f.limit < 1 || len(f.targets) != 1 {
		return cli.Wrongf("--rates, --speed, --runs and --limit must be positive, and --targets must have one policy")
	}
	levels := make([]*ground.Workload, len(f.rates))
	limit := f.limit
	for i, rate := range f.rates {
		f.rate, f.limit = rate, int(math.Ceil(float64(limit)*max(rate, 0)))
		if levels[i], err = f.workload(); err != nil {
			return err
		}
	}
	p, stop, err := f.start(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	routers := make([]ground.Router, len(ground.Ways()))
	for i, way := range ground.Ways() {
		if routers[i], err = ground.Find(f.targets[0]+"+--disaggregate="+way, ground.Programs{}, f.proxyFlags); err != nil {
			return cli.Wrongf("--targets: %w", err)
		}
	}
	report := ground.Disaggregated{
		Version: version.String(), Machine: machine.Describe(), Part: f.part, Policy: f.targets[0], Speed: f.speed, Engines: f.engines, Runs: f.runs,
	}
	for i, w := range levels {
		p.Workload, p.Caches = w, ground.NewCaches(w, f.engines, f.cache)
		p.Shared = ground.SharedHits(w, p.Caches, f.engines)
		_, _ = fmt.Fprintf(stdout, "load %g:\n", f.rates[i])
		rows, err := repeat(ctx, p, routers, f.runs, stdout)
		if err != nil {
			return err
		}
		level := ground.Level{Rate: f.rates[i], Requests: len(w.Requests), Runs: map[string][]ground.Result{}}
		for k, way := range ground.Ways() {
			level.Runs[way] = rows[k]
		}
		report.Levels = append(report.Levels, level)
	}
	_, _ = io.WriteString(stdout, report.Table())
	return ground.Save(&report, f.json, f.doc)
}
