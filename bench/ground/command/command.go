// Package command is the program fleetbench, which replays recorded traffic to simulated
// engines with finite KV caches, through our proxy with each policy and through other routers.
package command

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pdmesh/pdmesh/bench/ground"
	"github.com/pdmesh/pdmesh/bench/scale"
	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/sim/loadgen"
)

// flags are the flags of the subcommands.
type flags struct {
	trace, part string
	rate, cache float64
	rates       []float64 // only of disaggregate and overload
	limit       int
	engines     int
	targets     []string

	proxies int

	// only of model
	seed   uint64
	weight float64
	roles  bool
	phase  time.Duration
	noise  float64

	// of run, disaggregate and overload
	bin, vllmRouter, smg, json, doc string
	speed                           float64
	runs                            int
	proxyFlags                      []string
}

// Run runs the program. It returns 0 after success, 1 after a failure, and 2 for a wrong command
// line.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var f, g, o flags // g is for disaggregate and o for overload, which have other defaults
	root := &cobra.Command{
		Use: "fleetbench", Short: "Replay recorded traffic to engines with finite KV caches",
	}
	replay := &cobra.Command{
		Use: "run", Short: "replay over HTTP, through our proxy and other routers", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return replay(ctx, &f, stdout) },
	}
	model := &cobra.Command{
		Use: "model", Short: "simulate our policies without HTTP and clock, in seconds", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return model(&f, stdout) },
	}
	compare := &cobra.Command{
		Use: "disaggregate", Short: "replay through our proxy with each value of --disaggregate, at several loads", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return disaggregate(ctx, &g, stdout) },
	}
	above := &cobra.Command{
		Use: "overload", Short: "replay through our proxy and other routers at loads up to far above the capacity", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return overload(ctx, &o, stdout) },
	}
	f.workloadFlags(model.Flags())
	f.workloadFlags(replay.Flags())
	f.replayFlags(replay.Flags())
	fs := model.Flags()
	fs.Float64Var(&f.weight, "cache-weight", 0, "setting of this name of the proxy; 0 means its default")
	fs.BoolVar(&f.roles, "roles", false, "simulate engines in both roles under a day curve instead: static ratios, an oracle, automatic roles, and the advice at ten loads")
	fs.DurationVar(&f.phase, "phase", time.Hour, "with --roles: length of each of the three phases")
	fs.Float64Var(&f.noise, "noise", 0.2, "with --roles: rates, prompts and steps vary by this part")
	fs.Uint64Var(&f.seed, "seed", 1, "random seed of the model")
	f.peerFlags(replay.Flags())
	for _, fs := range []*pflag.FlagSet{model.Flags(), replay.Flags()} {
		fs.Float64Var(&f.rate, "rate", 1, "multiplies the request rate of the trace")
		fs.IntVar(&f.limit, "limit", 0, "largest number of requests; 0 means all")
		fs.StringSliceVar(&f.targets, "targets", []string{"round_robin", "least_loaded", "session"}, "policies of our proxy, as POLICY or POLICY+FLAG; vllm-router:POLICY, smg:POLICY")
	}
	g.workloadFlags(compare.Flags())
	g.replayFlags(compare.Flags())
	fs = compare.Flags()
	fs.Float64SliceVar(&g.rates, "rates", []float64{0.5, 1, 1.5}, "factors of the request rate of the trace")
	fs.IntVar(&g.limit, "limit", 1000, "number of requests at rate 1, and in proportion at other rates")
	fs.StringSliceVar(&g.targets, "targets", []string{"prefix"}, "policy of prefill instances")
	setDefault(fs, "speed", "12") // decode also computes prompts, and two cores must be enough
	o.workloadFlags(above.Flags())
	o.replayFlags(above.Flags())
	o.peerFlags(above.Flags())
	fs = above.Flags()
	fs.Float64SliceVar(&o.rates, "rates", []float64{0.75, 1, 1.25, 1.5, 2, 3}, "factors of the request rate of the trace")
	fs.IntVar(&o.limit, "limit", 0, "number of requests at rate 1, and in proportion at other rates; 0 means all")
	fs.StringSliceVar(&o.targets, "targets", []string{"prefix+--queue=off", "prefix+--queue=on", "vllm-router:cache_aware"}, "as of run")
	setDefault(fs, "speed", "2.5") // a deadline of 5 s is 2 s; one below 1 s cannot be sent
	root.AddCommand(replay, model, compare, above, scaleCommand(ctx, stdout))
	return cli.Run(ctx, root, args, stdout, stderr)
}

func setDefault(fs *pflag.FlagSet, name, value string) {
	_ = fs.Set(name, value)
	fs.Lookup(name).DefValue = value
}

// peerFlags registers the programs of other routers.
func (f *flags) peerFlags(fs *pflag.FlagSet) {
	fs.StringVar(&f.vllmRouter, "vllm-router", "vllm-router", "program of vllm-router")
	fs.StringVar(&f.smg, "smg", "smg", "program of smg")
}

// workloadFlags registers the flags of a workload.
func (f *flags) workloadFlags(fs *pflag.FlagSet) {
	fs.StringVar(&f.trace, "trace", "", "trace in Mooncake's format (timestamp, input_length, output_length, hash_ids)")
	fs.StringVar(&f.part, "part", "first", "part of the trace: first half, which is for tuning; second half, which is for figures; whole")
	fs.Float64Var(&f.cache, "cache", 1, "size of all prefill caches together, divided by that of all blocks of the part")
	fs.IntVar(&f.engines, "engines", 8, "number of engines of each role")
	fs.IntVar(&f.proxies, "proxies", 1, "number of our proxies, which get the requests in turn")
}

// replayFlags registers the flags of a replay.
func (f *flags) replayFlags(fs *pflag.FlagSet) {
	fs.StringVar(&f.bin, "bin", "bin", "directory with our programs")
	fs.Float64Var(&f.speed, "speed", 20, "multiplies the speed of the trace and of the engines")
	fs.IntVar(&f.runs, "runs", 3, "number of runs of each target; the report has the medians")
	fs.StringArrayVar(&f.proxyFlags, "proxy-flags", nil, "one more flag for our proxy; repeatable")
	fs.StringVar(&f.json, "json", "", "file for the figures")
	fs.StringVar(&f.doc, "doc", "", "document with the generated part; plots go into the directory of its name")
}

// entries returns the trace of the flags.
func (f *flags) entries() ([]loadgen.Entry, error) {
	if f.trace == "" {
		return nil, cli.Wrongf("--trace is missing")
	}
	if !(f.rate > 0 && f.cache > 0) || f.engines < 1 || f.limit < 0 {
		return nil, cli.Wrongf("--rate, --cache and --engines must be positive")
	}
	file, err := os.Open(f.trace)
	if err != nil {
		return nil, fmt.Errorf("--trace: %w", err)
	}
	defer file.Close()
	entries, err := loadgen.ReadTrace(file, 0)
	if err != nil {
		return nil, fmt.Errorf("--trace %s: %w", f.trace, err)
	}
	return entries, nil
}

// workload returns the workload of the flags.
func (f *flags) workload() (*ground.Workload, error) {
	entries, err := f.entries()
	if err != nil {
		return nil, err
	}
	w, err := ground.NewWorkload(entries, ground.Part(f.part), f.rate, f.limit)
	if err != nil {
		return nil, cli.Wrongf("--part: %w", err)
	}
	return w, nil
}

// model runs the subcommand of this name.
func model(f *flags, stdout io.Writer) error {
	if f.roles {
		entries, err := f.entries()
		if err != nil {
			return err
		}
		if f.engines < 3 || f.phase < time.Minute || f.noise < 0 || f.noise > 0.9 {
			return cli.Wrongf("--engines must be 3 or more, --phase 1m or more, --noise 0 to 0.9")
		}
		_, _ = fmt.Fprintf(stdout, "%s\n%s", ground.NewDay(entries, f.engines, f.phase, f.rate, f.noise, f.seed).Compare(), ground.CompareAdvice(entries, f.seed))
		return nil
	}
	w, err := f.workload()
	if err != nil {
		return err
	}
	m := ground.Model{
		Engines: f.engines, Engine: ground.DefaultEngine(), Caches: ground.NewCaches(w, f.engines, f.cache), Seed: f.seed,
		CacheWeight: f.weight, Proxies: f.proxies,
	}
	var rows []ground.Result
	for _, name := range f.targets {
		r, err := m.Run(w, name)
		if err != nil {
			return err
		}
		rows = append(rows, r)
	}
	_, _ = io.WriteString(stdout, ground.Table(rows))
	return nil
}

// scaleCommand is the subcommand scale.
func scaleCommand(ctx context.Context, stdout io.Writer) *cobra.Command {
	o := scale.Options{Progress: stdout}
	var doc string
	c := &cobra.Command{
		Use: "scale", Short: "change the membership of a large fleet under load", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if o.Instances < 40 || o.Proxies < 1 || o.Changes < 1 || o.Duration < 5*time.Second || o.Rate < 1 {
				return cli.Wrongf("use at least 40 --instances, 1 of --proxies, --changes and --rate, and 5s for --duration")
			}
			if o.Changes > 10*o.Instances {
				return cli.Wrongf("--changes %d: use at most 10 for each instance", o.Changes)
			}
			r, err := scale.Run(ctx, o)
			if r == nil {
				return err
			}
			_, _ = io.WriteString(stdout, r.Table())
			if doc != "" && err == nil {
				err = ground.ReplacePart(doc, "scale", r.Table())
			}
			return err
		},
	}
	fs := c.Flags()
	fs.StringVar(&o.BinDir, "bin", "bin", "directory with our programs")
	fs.IntVar(&o.Instances, "instances", 1000, "number of instances, half of them prefill; at least 40")
	fs.IntVar(&o.Proxies, "proxies", 8, "number of proxies")
	fs.IntVar(&o.Changes, "changes", 2000, "changes of the membership per minute; at most 10 for each instance")
	fs.DurationVar(&o.Duration, "duration", 5*time.Minute, "duration of the changes; at least 5s")
	fs.IntVar(&o.Rate, "rate", 20, "requests per second, to all proxies together")
	fs.StringVar(&doc, "doc", "", "document for the table")
	return c
}
