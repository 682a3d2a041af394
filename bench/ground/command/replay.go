package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

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
	caches := ground.NewCaches(w, f.engines, f.cache)
	p := &ground.Replay{
		Lab: lab, Etcd: etcd, Workload: w, Engines: f.engines, Engine: ground.DefaultEngine(), Caches: caches,
		Limits: f.limits, Speed: f.speed, Proxies: f.proxies, Shared: ground.SharedHits(w, caches, f.engines), Patience: f.patience,
	}
	report := ground.Report{
		Version: version.String(), Machine: machine.Describe(), Part: f.part, Requests: len(w.Requests), Seconds: w.Length.Seconds(),
		Speed: f.speed, Rate: f.rate, Cache: f.cache, Engines: f.engines, Proxies: f.proxies, Runs: f.runs, Shared: p.Shared,
		SLOTTFT: f.limits.TTFT.Seconds(), SLOITL: f.limits.ITL.Seconds(),
	}
	for _, name := range f.targets {
		r, err := ground.Find(name, ground.Programs{VLLMRouter: f.vllmRouter, SMG: f.smg}, f.proxyFlags)
		if err != nil {
			if !errors.Is(err, target.ErrAbsent) {
				return cli.Wrongf("--targets: %w", err)
			}
			_, _ = fmt.Fprintf(stdout, "%s: skipped: %v\n", name, err)
			report.Absent = append(report.Absent, fmt.Sprintf("%s: %v", name, err))
			continue
		}
		row, err := repeat(ctx, p, r, f.runs, stdout)
		if err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			_, _ = fmt.Fprintf(stdout, "%s: skipped: %v\n", name, err)
			report.Absent = append(report.Absent, fmt.Sprintf("%s: %v", name, err))
			continue
		}
		report.Rows = append(report.Rows, row)
	}
	if len(report.Rows) == 0 {
		return errNothing
	}
	_, _ = io.WriteString(stdout, ground.Table(report.Medians()))
	return write(&report, f.json, f.doc)
}

// repeat runs a target until it has the given number of valid runs, but not more than twice as often.
func repeat(ctx context.Context, p *ground.Replay, r ground.Router, runs int, stdout io.Writer) ([]ground.Result, error) {
	var row []ground.Result
	valid := 0
	for try := 0; valid < runs && try < 2*runs; try++ {
		res, err := p.Run(ctx, r)
		if err != nil {
			return nil, err
		}
		_, _ = fmt.Fprintf(stdout, "%s: TTFT p50 %.2f s p90 %.2f s, hits %.1f %%, goodput %.1f %%, %d failures, machine %.0f %% busy %s%s\n",
			r.Name, res.TTFT50, res.TTFT90, 100*res.Hits, 100*res.Good, res.Failures, 100*res.Busy, void(res), failure(res))
		row = append(row, res)
		if res.Void == "" {
			valid++
		}
	}
	return row, nil
}

func void(r ground.Result) string {
	if r.Void == "" {
		return ""
	}
	return "VOID: " + r.Void
}

func failure(r ground.Result) string {
	if r.Failure == "" {
		return ""
	}
	return ", first failure: " + r.Failure
}

// write writes a report to its files.
func write(r *ground.Report, file, doc string) error {
	if file != "" {
		b, err := json.MarshalIndent(r, "", "  ")
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
	return r.WriteDoc(doc)
}

// rewrite writes the document from the figures of a run.
func rewrite(file, doc string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var r ground.Report
	if err := json.Unmarshal(b, &r); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return errors.Join(r.WriteDoc(doc), ground.RewriteChats(doc))
}
