// Package command is the program bench, which measures the cost of a request through the
// proxy and other targets. See bench/README.md.
package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/bench/machine"
	"github.com/pdmesh/pdmesh/bench/report"
	"github.com/pdmesh/pdmesh/bench/suite"
	"github.com/pdmesh/pdmesh/bench/target"
	"github.com/pdmesh/pdmesh/internal/cli"
)

// Run runs the program. It returns 0 after success, 1 after a failure, a missed gate or a
// bad response, and 2 for a wrong command line.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var f flags
	run := &cobra.Command{
		Use: "run", Short: "run the workloads against the targets and write the report", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	f.register(run)
	page := &cobra.Command{
		Use: "report DIR", Short: "write the report of all machines from DIR/MACHINE/result.json", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return writePage(cmd.OutOrStdout(), args[0]) },
	}
	root := &cobra.Command{Use: "bench", Short: "Measure the cost of a request through the proxy and other targets"}
	root.AddCommand(run, page)
	root.CompletionOptions.DisableDefaultCmd = true
	return cli.Run(ctx, root, args, stdout, stderr)
}

// flags are the flags of run.
type flags struct {
	workloads, targets, proxyFlags, builds []string
	repeats                                int
	duration, warmup                       time.Duration
	bin, proxy, nginx, router, smg, pin    string
	into, machine, json, against           string
}

func (f *flags) register(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringSliceVar(&f.workloads, "workloads", nil, "names of workloads, separated by commas (default all)")
	fs.StringSliceVar(&f.targets, "targets", target.Names(target.Known()), "names of targets, separated by commas; the name of a policy is our proxy with this policy")
	fs.StringArrayVar(&f.builds, "build", nil, "NAME=FILE: another build of our proxy as a target; repeatable")
	fs.IntVar(&f.repeats, "repeats", 3, "number of repeats of all workloads")
	fs.DurationVar(&f.duration, "duration", 5*time.Second, "measured time for each workload and target in a repeat")
	fs.DurationVar(&f.warmup, "warmup", time.Second, "load before a measurement")
	fs.StringVar(&f.into, "into", "", "directory of all reports (docs/performance): figures and plots go into the folder of this machine, and README.md is written")
	fs.StringVar(&f.machine, "machine", "", "name of the folder of this machine (default the name of its processor)")
	fs.StringVar(&f.json, "json", "dist/bench/result.json", "file for the figures without --into")
	fs.StringVar(&f.against, "against", "", "name of a target; print the CPU time of a request with each target in comparison with it")
	fs.StringVar(&f.bin, "bin", "bin", "directory with our programs")
	fs.StringVar(&f.proxy, "proxy", "", "program of our proxy (default proxy in --bin)")
	fs.StringArrayVar(&f.proxyFlags, "proxy-flags", nil, "more flags for our proxy, separated by blanks; repeatable")
	fs.StringVar(&f.nginx, "nginx", "nginx", "program of nginx")
	fs.StringVar(&f.router, "vllm-router", "vllm-router", "program of vllm-router")
	fs.StringVar(&f.smg, "smg", "smg", "program of smg")
	fs.StringVar(&f.pin, "pin", "auto", "cores of targets and of everything else, as 0,1; auto uses these if there are two; off")
}

// cores returns the cores of the targets and of this process; "" does not pin.
func (f *flags) cores() (targets, harness string, err error) {
	switch f.pin {
	case "off":
		return "", "", nil
	case "auto":
		if machine.Describe().Cores < 2 {
			return "", "", nil
		}
		return "0", "1", nil
	}
	var a, b int
	if _, err := fmt.Sscanf(f.pin, "%d,%d", &a, &b); err != nil {
		return "", "", cli.Wrongf("--pin %q: must be auto, off, or two cores as 0,1", f.pin)
	}
	return fmt.Sprint(a), fmt.Sprint(b), nil
}

// pinSelf replaces this process by itself, pinned to a core. It returns nil if that was
// done before, or if core is "".
func pinSelf(core string) error {
	const pinned = "PD_TEST_BENCH_PINNED"
	if core == "" {
		return nil
	}
	if os.Getenv(pinned) != "" {
		runtime.GOMAXPROCS(1)
		return nil
	}
	taskset, err := exec.LookPath("taskset")
	if err != nil {
		return fmt.Errorf("pin this process: install util-linux, or use --pin off for a run without meaningful figures: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return syscall.Exec(taskset, append([]string{"taskset", "-c", core, self}, os.Args[1:]...), append(os.Environ(), pinned+"=1"))
}

// specs returns the targets.
func (f *flags) specs() (specs []target.Spec, err error) {
	ours := strings.Fields(strings.Join(f.proxyFlags, " "))
	for _, name := range f.targets {
		s, err := target.Parse(name)
		if err != nil {
			return nil, cli.Wrong(err)
		}
		switch s.Kind {
		case target.Mesh:
			s.Program, s.Flags = f.proxy, slices.Concat(ours, s.Flags)
		case target.Nginx:
			s.Program = f.nginx
		case target.VLLMRouter:
			s.Program = f.router
		case target.SMG:
			s.Program = f.smg
		}
		specs = append(specs, s)
	}
	for _, b := range f.builds {
		name, file, ok := strings.Cut(b, "=")
		if !ok || name == "" || file == "" {
			return nil, cli.Wrongf("--build %q: must be NAME=FILE", b)
		}
		specs = append(specs, target.Spec{Name: name, Kind: target.Mesh, Program: file, Flags: ours})
	}
	names := target.Names(specs)
	for i, n := range names {
		if slices.Contains(names[:i], n) {
			return nil, cli.Wrongf("two targets have the name %s", n)
		}
	}
	return specs, nil
}

var (
	errBad    = errors.New("not all responses were correct")
	errMissed = errors.New("gates missed")
)

func (f *flags) run(cmd *cobra.Command) (err error) {
	workloads, err := suite.Choose(f.workloads)
	if err != nil {
		return cli.Wrong(err)
	}
	if f.repeats < 1 || f.duration <= 0 {
		return cli.Wrongf("--repeats and --duration must be positive")
	}
	specs, err := f.specs()
	if err != nil {
		return err
	}
	core, harness, err := f.cores()
	if err != nil {
		return err
	}
	if err := pinSelf(harness); err != nil {
		return err
	}
	files, out := machine.RaiseFiles(), cmd.OutOrStdout()
	lab, err := target.NewLab(target.Options{BinDir: f.bin, Core: core, Files: files})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lab.Close()) }()
	run := &report.Run{
		Started: time.Now().UTC().Truncate(time.Second), Commit: commit(cmd.Context()), Machine: machine.Describe(),
		Config: report.Config{Targets: target.Names(specs), Repeats: f.repeats, Seconds: f.duration.Seconds(), ProxyFlags: f.proxyFlags},
	}
	for _, w := range workloads {
		run.Config.Workloads = append(run.Config.Workloads, w.Name)
	}
	if core == "" {
		run.Notes = append(run.Notes, "Nothing was pinned to a core, so targets, engines and load generator used the same cores.")
	}
	file := f.json
	if f.into != "" {
		file = filepath.Join(f.into, cmp.Or(f.machine, report.NameOf(machine.Describe())), "result.json")
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil { // before the measurement
		return err
	}
	err = suite.Run(cmd.Context(), lab, suite.Options{
		Workloads: workloads, Targets: specs, Repeats: f.repeats, Window: f.duration, Warmup: f.warmup, Files: files, Progress: out,
	}, run)
	if err != nil {
		return err
	}
	if err := run.Write(file); err != nil {
		return err
	}
	fmt.Fprintf(out, "figures in %s\n\n%s", file, run.GateTable())
	if f.into != "" {
		if err := writePage(out, f.into); err != nil {
			return err
		}
	}
	if f.against != "" {
		if err := run.Against(out, f.against); err != nil {
			return err
		}
	}
	for i := range run.Cells {
		if run.Cells[i].Bad() > 0 {
			return errBad
		}
	}
	if missed := run.Missed(); missed != "" {
		return fmt.Errorf("%w: %s", errMissed, missed)
	}
	return nil
}

// writePage writes the page and the plots of all machines.
func writePage(out io.Writer, dir string) error {
	all, err := report.ReadAll(dir)
	if err != nil {
		return err
	}
	for _, m := range all {
		for _, p := range m.Run.Plots() {
			if err := os.WriteFile(filepath.Join(dir, m.Name, p.File), []byte(p.SVG), 0o644); err != nil {
				return fmt.Errorf("write report: %w", err)
			}
		}
	}
	page := filepath.Join(dir, "README.md")
	if err := os.WriteFile(page, []byte(report.Page(all)), 0o644); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	fmt.Fprintf(out, "report in %s\n", page)
	return nil
}

// commit returns the name of the commit in the working directory, or "unknown". Changed
// documentation does not make it dirty, because the report is a part of it.
func commit(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "git", "describe", "--always", "--exclude=*").Output()
	if err != nil {
		return "unknown"
	}
	name := strings.TrimSpace(string(out))
	changed, err := exec.CommandContext(ctx, "git", "status", "--porcelain", "--untracked-files=no", "--",
		":(top)", ":(top,exclude)docs", ":(top,exclude)*.md").Output()
	if err != nil || len(changed) > 0 {
		name += "-dirty"
	}
	return name
}
