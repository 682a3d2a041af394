package command

import (
	"context"
	"errors"
	"fmt"
	"io"
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
