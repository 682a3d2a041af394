package command

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/bench/machine"
	"github.com/pdmesh/pdmesh/bench/report"
	"github.com/pdmesh/pdmesh/bench/suite"
	"github.com/pdmesh/pdmesh/bench/target"
	"github.com/pdmesh/pdmesh/internal/cli"
)

// idle is how long the machine is looked at before each repeat.
const idle = 2 * time.Second

// errNotRight is the error of a run in which something was answered wrongly.
var errNotRight = errors.New("not every answer was complete and right")

type runFlags struct {
	labFlags
	outFlags
	workloads, targets []string
	builds             []string
	repeats            int
	duration, warmup   time.Duration
	rate               float64
	sleep              bool
	patience           time.Duration
	quiet              float64
	jsonOut            string
	against            string
}

func runCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use: "run", Short: "run the workloads against the targets and write the report", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringSliceVar(&f.workloads, "workloads", nil, "names of workloads, by comma (default all)")
	fs.StringSliceVar(&f.targets, "targets", target.UsualNames(), "which of the targets that we know, by comma")
	var more []string
	fs.StringArrayVar(&more, "target", nil, "another proxy, NAME[@/READY]=COMMAND with {port}, {prefill}, {decode} and their _csv, _host, _port")
	fs.StringArrayVar(&f.builds, "build", nil, "NAME=FILE: one more build of our proxy as a target, set up the same way, to compare two")
	fs.IntVar(&f.repeats, "repeats", 3, "how often everything is run")
	fs.DurationVar(&f.duration, "duration", 5*time.Second, "how long each cell is measured")
	fs.DurationVar(&f.warmup, "warmup", time.Second, "how long each cell runs before")
	fs.Float64Var(&f.rate, "rate", 0, "open loop: requests per second at random times, instead of closed loops")
	fs.BoolVar(&f.sleep, "sleep", false, "let engines and generator sleep while they wait; who sends them something then pays for waking them")
	fs.DurationVar(&f.patience, "patience", 0, "how long to wait in all for the machine to be quiet before what depends on it")
	fs.Float64Var(&f.quiet, "quiet", 0, "µs of CPU that the probe of --patience shows on this machine when it is quiet (default the best it has seen in this run)")
	fs.StringVar(&f.jsonOut, "json", "dist/bench/result.json", "where the figures go without --into")
	fs.StringVar(&f.against, "against", "", "a target; the CPU of a request with each is told beside that with this one")
	f.labFlags.register(fs)
	f.outFlags.register(fs)
	cmd.PreRunE = func(*cobra.Command, []string) error {
		f.targets = append(f.targets, more...)
		return nil
	}
	return cmd
}

func (f *runFlags) run(cmd *cobra.Command) (err error) {
	workloads, err := suite.Choose(f.workloads)
	if err != nil {
		return cli.Wrong(err)
	}
	if f.repeats < 1 || f.duration <= 0 {
		return cli.Wrongf("--repeats and --duration must be positive")
	}
	if f.patience < 0 || f.quiet < 0 {
		return cli.Wrongf("--patience and --quiet must not be negative")
	}
	specs, err := f.specs()
	if err != nil {
		return err
	}
	lab, files, pinned, err := f.open()
	if err != nil {
		return err
	}
	defer func() {
		if f.keep {
			fmt.Fprintf(cmd.ErrOrStderr(), "logs are in %s\n", lab.Dir())
		}
		err = errors.Join(err, lab.Close())
	}()
	run := &report.Run{Started: time.Now().UTC().Truncate(time.Second), Commit: commit(cmd.Context()), Machine: machine.Describe()}
	run.Config = report.Config{
		Repeats: f.repeats, Seconds: f.duration.Seconds(), Engine: f.engine, Connector: f.connector, Pinned: pinned,
		Awake: pinned && !f.sleep, ProxyFlags: f.proxyFlags, Rate: f.rate, Seed: f.seed,
	}
	for _, w := range workloads {
		run.Config.Workloads = append(run.Config.Workloads, w.Name)
	}
	for _, s := range specs {
		run.Config.Targets = append(run.Config.Targets, s.Name)
	}
	if !pinned {
		run.Notes = append(run.Notes, "Nothing was pinned to a core: targets, engines and generator took each other's time.")
	}
	o := suite.Options{
		Workloads: workloads, Targets: specs, Repeats: f.repeats, Window: f.duration, Warmup: f.warmup, Idle: idle, Awake: run.Config.Awake, Patience: f.patience, Quiet: f.quiet,
		Engine: f.engine, Connector: f.connector, Rate: f.rate, Seed: f.seed, Files: files, Progress: cmd.OutOrStdout(),
	}
	// Before anything is measured: that the figures have no place is known at once.
	if err := os.MkdirAll(filepath.Dir(f.figures()), 0o755); err != nil {
		return err
	}
	begun := time.Now()
	if err := suite.Run(cmd.Context(), lab, o, run); err != nil {
		return err
	}
	run.Took = time.Since(begun).Seconds()
	if err := run.Write(f.figures()); err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "figures in %s\n", f.figures())
	if err := f.outFlags.write(cmd.OutOrStdout(), run); err != nil {
		return err
	}
	if f.against != "" {
		if err := run.Against(cmd.OutOrStdout(), f.against); err != nil {
			return err
		}
	}
	for i := range run.Cells {
		if run.Cells[i].Bad() > 0 {
			return errNotRight
		}
	}
	return nil
}

// figures is the file that the figures go to.
func (f *runFlags) figures() string {
	if f.into == "" {
		return f.jsonOut
	}
	return filepath.Join(f.folder(), "result.json")
}

func (f *runFlags) specs() (specs []target.Spec, err error) {
	ours := strings.Fields(strings.Join(f.proxyFlags, " "))
	for _, t := range f.targets {
		s, err := target.ParseSpec(t)
		if err != nil {
			return nil, cli.Wrong(err)
		}
		switch s.Kind {
		case target.Nginx:
			s.Program = f.nginx
		case target.Router:
			s.Program = f.router
		case target.Mesh:
			s.Program = f.proxy
			s.Flags = slices.Concat(ours, s.Flags) // its own last: pdmesh-std stays what it is called
		}
		specs = append(specs, s)
	}
	for _, b := range f.builds {
		name, file, ok := strings.Cut(b, "=")
		if !ok || name == "" || file == "" {
			return nil, cli.Wrongf("--build %q: use NAME=FILE", b)
		}
		specs = append(specs, target.Spec{Name: name, Kind: target.Mesh, Program: file, Flags: ours})
	}
	for i, s := range specs {
		if slices.ContainsFunc(specs[:i], func(o target.Spec) bool { return o.Name == s.Name }) {
			return nil, cli.Wrongf("two targets are named %s", s.Name)
		}
	}
	return specs, nil
}
