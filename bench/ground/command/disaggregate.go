package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"

	"github.com/pdmesh/pdmesh/bench/ground"
	"github.com/pdmesh/pdmesh/bench/machine"
	"github.com/pdmesh/pdmesh/bench/target"
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
	lab, err := target.NewLab(target.Options{BinDir: f.bin, Files: machine.RaiseFiles()})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lab.Close()) }()
	etcd, err := lab.StartEtcd(ctx)
	if err != nil {
		return err
	}
	defer etcd.Close()
	p := &ground.Replay{
		Lab: lab, Etcd: etcd, Engines: f.engines, Engine: ground.DefaultEngine(), Limits: f.limits, Speed: f.speed, Proxies: f.proxies, Patience: f.patience,
	}
	report := ground.Disaggregated{
		Version: version.String(), Machine: machine.Describe(), Part: f.part, Policy: f.targets[0], Speed: f.speed, Engines: f.engines, Runs: f.runs,
	}
	for i, w := range levels {
		p.Workload, p.Caches = w, ground.NewCaches(w, f.engines, f.cache)
		p.Shared = ground.SharedHits(w, p.Caches, f.engines)
		level := ground.Level{Rate: f.rates[i], Requests: len(w.Requests), Runs: map[string][]ground.Result{}}
		if err := runLevel(ctx, f, p, &level, stdout); err != nil {
			return err
		}
		report.Levels = append(report.Levels, level)
	}
	_, _ = io.WriteString(stdout, report.Table())
	return writeDisaggregated(&report, f.json, f.doc)
}

// runLevel runs each way until it has enough valid runs, but not more than twice as often.
func runLevel(ctx context.Context, f *flags, p *ground.Replay, level *ground.Level, stdout io.Writer) error {
	for range 2 * f.runs {
		for _, way := range ground.Ways() {
			if level.Valid(way) >= f.runs {
				continue
			}
			r, err := ground.Find(f.targets[0]+"+--disaggregate="+way, ground.Programs{}, f.proxyFlags)
			if err != nil {
				return cli.Wrongf("--targets: %w", err)
			}
			res, err := p.Run(ctx, r)
			if err != nil {
				return err
			}
			_, _ = fmt.Fprintf(stdout, "load %g, %s: TTFT p50 %.2f s p90 %.2f s, ITL p90 %.1f ms, goodput %.1f %%, %.1f %% computed by decode, %d failures, machine %.0f %% busy %s%s\n",
				level.Rate, way, res.TTFT50, res.TTFT90, 1000*res.ITL90, 100*res.Good, 100*res.Local, res.Failures, 100*res.Busy, void(res), failure(res))
			level.Runs[way] = append(level.Runs[way], res)
		}
	}
	return nil
}

func writeDisaggregated(d *ground.Disaggregated, file, doc string) error {
	if file != "" {
		b, err := json.MarshalIndent(d, "", "  ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(file, append(b, '\n'), 0o644); err != nil { //nolint:gosec // reports are public
			return err
		}
	}
	if doc == "" {
		return nil
	}
	return d.WriteDoc(doc)
}
