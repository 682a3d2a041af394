package command

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/bench/soak"
	"github.com/pdmesh/pdmesh/bench/target"
	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/sim/fleet"
)

func soakCommand() *cobra.Command {
	var f labFlags
	var o soak.Options
	var out string
	cmd := &cobra.Command{
		Use: "soak", Short: "load our proxy for long and see whether anything grows", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runSoak(cmd, &f, o, out) },
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.DurationVar(&o.Duration, "duration", 30*time.Minute, "how long")
	fs.Float64Var(&o.Rate, "rate", 0, "requests per second (default half of the peak, measured at the start)")
	fs.Float64Var(&o.Leave, "leave", 0.1, "share of clients that leave at a random point")
	fs.DurationVar(&o.Every, "churn", 3*time.Second, "how often an instance signs off or comes back")
	fs.DurationVar(&o.Sample, "sample", 5*time.Second, "how often the process is looked at")
	fs.Float64Var(&o.MaxSlope, "max-slope", 64, "how much memory may grow, in KiB per minute, over the last two thirds")
	fs.StringVar(&out, "out", filepath.Join("docs/performance", machineName("")), "directory for soak.json and the plots")
	f.register(fs)
	return cmd
}

func runSoak(cmd *cobra.Command, f *labFlags, o soak.Options, out string) (err error) {
	if o.Duration <= 0 || o.Every <= 0 || o.Sample <= 0 {
		return cli.Wrongf("--duration, --churn and --sample must be positive")
	}
	lab, _, _, err := f.open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lab.Close()) }()
	ports, err := fleet.FreePorts(8)
	if err != nil {
		return err
	}
	for _, p := range ports {
		o.Engines = append(o.Engines, fmt.Sprintf("127.0.0.1:%d", p))
	}
	o.Spec = target.Spec{Name: "pdmesh", Kind: target.Mesh, Program: f.proxy}
	for _, flags := range f.proxyFlags {
		o.Spec.Flags = append(o.Spec.Flags, strings.Fields(flags)...)
	}
	o.Seed, o.Progress = f.seed, cmd.OutOrStdout()
	of := commit(cmd.Context()) // what runs, whatever is checked out half an hour later
	r, soakErr := soak.Run(cmd.Context(), lab, o)
	if r == nil {
		return soakErr
	}
	r.Commit = of
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	if err := r.Write(filepath.Join(out, "soak.json")); err != nil {
		return err
	}
	for file, svg := range r.Drawings() {
		if err := publish(filepath.Join(out, file), svg); err != nil {
			return err
		}
	}
	fmt.Fprintf(o.Progress, "%.0f s at %.0f requests/s: %d right, %d wrong, %d broken, %d failed, %d left by their clients, %d changes of the membership\n",
		r.Seconds, r.Rate, r.Right, r.Wrong, r.Broken, r.Failed, r.Left, r.Changes)
	fmt.Fprintf(o.Progress, "per minute: %.1f KiB, %.2f goroutines, %.2f sockets\n", r.RSSSlope, r.GoroutineSlope, r.SocketSlope)
	return soakErr
}
