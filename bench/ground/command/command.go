// Package command is the program fleetbench: it replays recorded traffic before
// simulated engines with finite KV caches, through our proxy with each policy and
// through other routers.
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
	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/sim/loadgen"
)

// flags are those of the subcommands.
type flags struct {
	trace, part string
	rate, cache float64
	rates       []float64 // of disaggregate
	limit       int
	engines     int
	seed        uint64
	targets     []string
	limits      ground.Limits

	proxies int

	// of model
	weight float64
	silent bool

	// of run
	bin, vllmRouter, smg, json, doc string
	speed                           float64
	runs                            int
	patience                        time.Duration
	proxyFlags                      []string
}

// Run is the whole program: 0 when figures came out, 1 for a failure, 2 for a wrong
// command line.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var f, g flags // g of disaggregate, whose defaults differ
	root := &cobra.Command{
		Use: "fleetbench", Short: "Recorded traffic before engines with finite KV caches",
	}
	replay := &cobra.Command{
		Use: "run", Short: "replay over HTTP, through our proxy and other routers", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return replay(ctx, &f, stdout) },
	}
	model := &cobra.Command{
		Use: "model", Short: "without HTTP and clock: policies alone, in seconds", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return model(&f, stdout) },
	}
	compare := &cobra.Command{
		Use: "disaggregate", Short: "replay through our proxy with each value of --disaggregate, at several loads", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return disaggregate(ctx, &g, stdout) },
	}
	report := &cobra.Command{
		Use: "report RESULT.json", Short: "write the report again from the figures of a run", Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error { return rewrite(args[0], f.doc) },
	}
	f.workloadFlags(model.Flags())
	f.workloadFlags(replay.Flags())
	f.replayFlags(replay.Flags())
	fs := model.Flags()
	fs.Float64Var(&f.weight, "cache-weight", 0, "the proxy's setting of this name; 0 is its default")
	fs.BoolVar(&f.silent, "silent", false, "several proxies tell each other nothing")
	fs = replay.Flags()
	fs.StringVar(&f.vllmRouter, "vllm-router", "vllm-router", "vllm-router's program")
	fs.StringVar(&f.smg, "smg", "smg", "smg's program")
	for _, fs := range []*pflag.FlagSet{model.Flags(), replay.Flags()} {
		fs.Float64Var(&f.rate, "rate", 1, "so many times as many requests in the same time")
		fs.IntVar(&f.limit, "limit", 0, "requests of the part, 0 for all")
		fs.StringSliceVar(&f.targets, "targets", []string{"round_robin", "least_loaded", "session"}, "policies of ours, POLICY+FLAG for flags besides; vllm-router:POLICY, smg:POLICY")
	}
	g.workloadFlags(compare.Flags())
	g.replayFlags(compare.Flags())
	fs = compare.Flags()
	fs.Float64SliceVar(&g.rates, "rates", []float64{0.5, 1, 1.5}, "loads: so many times as many requests in the same time")
	fs.IntVar(&g.limit, "limit", 1000, "requests of the part at load 1, and in proportion at others")
	fs.StringSliceVar(&g.targets, "targets", []string{"prefix"}, "the policy of prefill instances")
	_ = fs.Set("speed", "12") // decode computes prompts as well, and two cores must be enough
	fs.Lookup("speed").DefValue = "12"
	report.Flags().StringVar(&f.doc, "doc", "docs/scheduling.md", "document whose generated part is written")
	root.AddCommand(replay, model, compare, report)
	return cli.Run(ctx, root, args, stdout, stderr)
}

// workloadFlags are those of all commands that look at a trace.
func (f *flags) workloadFlags(fs *pflag.FlagSet) {
	fs.StringVar(&f.trace, "trace", "", "trace in Mooncake's format (timestamp, input_length, output_length, hash_ids)")
	fs.StringVar(&f.part, "part", "first", "first half of the trace, for looking for constants; second, for figures; or whole")
	fs.Float64Var(&f.cache, "cache", 1, "size of all prefill caches together, in proportion to all blocks of the part")
	fs.IntVar(&f.engines, "engines", 8, "engines of each role")
	fs.IntVar(&f.proxies, "proxies", 1, "proxies of ours before one fleet, which take requests in turn")
	fs.Uint64Var(&f.seed, "seed", 1, "seed of all chance in the model")
	fs.DurationVar(&f.limits.TTFT, "slo-ttft", ground.DefaultLimits().TTFT, "what a good answer's first token may take, in the time of the trace")
	fs.DurationVar(&f.limits.ITL, "slo-itl", ground.DefaultLimits().ITL, "mean time between tokens that a good answer may take")
}

// replayFlags are those of commands that start engines.
func (f *flags) replayFlags(fs *pflag.FlagSet) {
	fs.StringVar(&f.bin, "bin", "bin", "directory with our programs")
	fs.Float64Var(&f.speed, "speed", 20, "so many times as fast as the trace; engines are as much faster")
	fs.IntVar(&f.runs, "runs", 3, "runs of each target; medians are told")
	fs.DurationVar(&f.patience, "patience", 10*time.Minute, "how long the runs may wait in all for a machine with nothing else to do")
	fs.StringArrayVar(&f.proxyFlags, "proxy-flags", nil, "flag for our proxy in addition, repeated")
	fs.StringVar(&f.json, "json", "", "file for the figures")
	fs.StringVar(&f.doc, "doc", "", "document whose generated part is written; plots go into a directory of its name")
}

// workload reads the trace.
func (f *flags) workload() (*ground.Workload, error) {
	if f.trace == "" {
		return nil, cli.Wrongf("--trace names no file")
	}
	if f.rate <= 0 || f.cache <= 0 || f.engines < 1 || f.limit < 0 {
		return nil, cli.Wrongf("--rate, --cache and --engines must be above 0")
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
	w, err := ground.NewWorkload(entries, ground.Part(f.part), f.rate, f.limit)
	if err != nil {
		return nil, cli.Wrongf("--part: %w", err)
	}
	return w, nil
}

// model runs policies without a network.
func model(f *flags, stdout io.Writer) error {
	w, err := f.workload()
	if err != nil {
		return err
	}
	m := ground.Model{
		Engines: f.engines, Engine: ground.DefaultEngine(), Caches: ground.NewCaches(w, f.engines, f.cache), Limits: f.limits, Seed: f.seed,
		CacheWeight: f.weight, Proxies: f.proxies, Silent: f.silent,
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
