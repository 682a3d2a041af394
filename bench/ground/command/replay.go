package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/pdmesh/pdmesh/bench/ground"
	"github.com/pdmesh/pdmesh/bench/machine"
	"github.com/pdmesh/pdmesh/bench/target"
	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/cli/version"
)

// errNothing is returned if there are no figures.
var errNothing = errors.New("no target has figures")

// replay runs all targets and writes the report.
func replay(ctx context.Context, f *flags, stdout io.Writer) (err error) {
	w, err := f.workload()
	if err != nil {
		return err
	}
	if f.speed <= 0 || f.runs < 1 || f.proxies < 1 {
		return cli.Wrongf("--speed, --runs and --proxies must be positive")
	}
	p, stop, err := f.start(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	p.Workload, p.Caches = w, ground.NewCaches(w, f.engines, f.cache)
	p.Shared = ground.SharedHits(w, p.Caches, f.engines)
	limits := ground.DefaultLimits()
	report := ground.Report{
		Version: version.String(), Machine: machine.Describe(), Part: f.part, Requests: len(w.Requests), Seconds: w.Length.Seconds(),
		Speed: f.speed, Rate: f.rate, Cache: f.cache, Engines: f.engines, Proxies: f.proxies, Runs: f.runs, Shared: p.Shared,
		SLOTTFT: limits.TTFT.Seconds(), SLOITL: limits.ITL.Seconds(),
	}
	for _, name := range f.targets {
		r, err := ground.Find(name, ground.Programs{VLLMRouter: f.vllmRouter, SMG: f.smg}, f.proxyFlags)
		if err != nil && !errors.Is(err, target.ErrAbsent) {
			return cli.Wrongf("--targets: %w", err)
		}
		var rows [][]ground.Result
		if err == nil {
			rows, err = repeat(ctx, p, []ground.Router{r}, f.runs, stdout)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			_, _ = fmt.Fprintf(stdout, "%s: skipped: %v\n", name, err)
			report.Absent = append(report.Absent, fmt.Sprintf("%s: %v", name, err))
		}
		report.Rows = append(report.Rows, rows...)
	}
	if len(report.Rows) == 0 {
		return errNothing
	}
	_, _ = io.WriteString(stdout, ground.Table(report.Medians()))
	return ground.Save(&report, f.json, f.doc)
}

// start returns a replay without a workload, with an etcd. Call stop after it.
func (f *flags) start(ctx context.Context) (p *ground.Replay, stop func() error, err error) {
	lab, err := target.NewLab(target.Options{BinDir: f.bin, Files: machine.RaiseFiles()})
	if err != nil {
		return nil, nil, err
	}
	etcd, err := lab.StartEtcd(ctx)
	if err != nil {
		return nil, nil, errors.Join(err, lab.Close())
	}
	p = &ground.Replay{
		Lab: lab, Etcd: etcd, Engines: f.engines, Engine: ground.DefaultEngine(), Speed: f.speed, Proxies: f.proxies, Patience: 10 * time.Minute,
	}
	return p, func() error {
		etcd.Close()
		return lab.Close()
	}, nil
}

// repeat runs routers in turn until each has n valid runs, but none more than twice as often.
func repeat(ctx context.Context, p *ground.Replay, routers []ground.Router, n int, stdout io.Writer) ([][]ground.Result, error) {
	rows := make([][]ground.Result, len(routers))
	for range 2 * n {
		for i, r := range routers {
			if len(ground.Valid(rows[i])) >= n {
				continue
			}
			res, err := p.Run(ctx, r)
			if err != nil {
				return nil, err
			}
			_, _ = fmt.Fprintf(stdout, "%s: %s\n", r.Name, res.Line())
			rows[i] = append(rows[i], res)
		}
	}
	return rows, nil
}

// disaggregate compares the values of --disaggregate at several loads.
func disaggregate(ctx context.Context, f *flags, stdout io.Writer) error {
	if f.limit < 1 || len(f.targets) != 1 {
		return cli.Wrongf("--limit must be positive, and --targets must have one policy")
	}
	report := ground.Disaggregated{
		Version: version.String(), Machine: machine.Describe(), Part: f.part, Policy: f.targets[0], Speed: f.speed, Engines: f.engines, Runs: f.runs,
	}
	names := map[string]string{}
	for _, way := range ground.Ways() {
		names[way] = report.Policy + "+--disaggregate=" + way
	}
	levels, err := f.levels(ctx, ground.Ways(), names, 0, stdout)
	if err != nil {
		return err
	}
	report.Levels = levels
	_, _ = io.WriteString(stdout, report.Table())
	return ground.Save(&report, f.json, f.doc)
}

// overload compares targets at loads up to far above the capacity.
func overload(ctx context.Context, f *flags, stdout io.Writer) error {
	report := ground.Overload{
		Version: version.String(), Machine: machine.Describe(), Part: f.part, Speed: f.speed, Engines: f.engines, Proxies: f.proxies, Runs: f.runs, Limits: ground.DefaultLimits(),
	}
	levels, err := f.levels(ctx, f.targets, nil, 100*f.proxies, stdout) // the queue refuses only what it can predict
	if err != nil {
		return err
	}
	report.Targets, report.Levels = f.targets, levels
	_, _ = io.WriteString(stdout, report.Table())
	return ground.Save(&report, f.json, f.doc)
}

// levels replays the workload at all rates through the targets of names, which have their own
// names as default. Before that they get warm requests of the other half of the trace. All loads have the same length in time of the trace, if there is a limit. The
// targets take turns, so that other work of the machine affects all of them.
func (f *flags) levels(ctx context.Context, keys []string, names map[string]string, warm int, stdout io.Writer) (out []ground.Level, err error) {
	if len(f.rates) == 0 || f.speed <= 0 || f.runs < 1 || f.proxies < 1 {
		return nil, cli.Wrongf("--rates, --speed, --runs and --proxies must be positive")
	}
	workloads := make([]*ground.Workload, len(f.rates))
	limit := f.limit
	for i, rate := range f.rates {
		f.rate, f.limit = rate, int(math.Ceil(float64(limit)*max(rate, 0)))
		if workloads[i], err = f.workload(); err != nil {
			return nil, err
		}
	}
	var routers []ground.Router
	var present []string
	for _, key := range keys {
		r, err := ground.Find(cmp.Or(names[key], key), ground.Programs{VLLMRouter: f.vllmRouter, SMG: f.smg}, f.proxyFlags)
		if errors.Is(err, target.ErrAbsent) {
			_, _ = fmt.Fprintf(stdout, "%s: skipped: %v\n", key, err)
			continue
		}
		if err != nil {
			return nil, cli.Wrongf("--targets: %w", err)
		}
		routers, present = append(routers, r), append(present, key)
	}
	p, stop, err := f.start(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	if warm > 0 {
		if p.Warm, err = f.otherHalf(warm); err != nil {
			return nil, err
		}
	}
	for i, w := range workloads {
		p.Workload, p.Caches = w, ground.NewCaches(w, f.engines, f.cache)
		p.Shared = ground.SharedHits(w, p.Caches, f.engines)
		_, _ = fmt.Fprintf(stdout, "load %g:\n", f.rates[i])
		rows, err := repeat(ctx, p, routers, f.runs, stdout)
		if err != nil {
			return nil, err
		}
		level := ground.Level{Rate: f.rates[i], Requests: len(w.Requests), Runs: map[string][]ground.Result{}}
		for k, key := range present {
			level.Runs[key] = rows[k]
		}
		out = append(out, level)
	}
	return out, nil
}

// otherHalf returns requests of the half of the trace that is not replayed, at the recorded rate.
func (f *flags) otherHalf(limit int) (*ground.Workload, error) {
	entries, err := f.entries()
	if err != nil {
		return nil, err
	}
	part := ground.First
	if ground.Part(f.part) == ground.First {
		part = ground.Second
	}
	return ground.NewWorkload(entries, part, 1, limit)
}
