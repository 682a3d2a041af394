// Package local is the program fleet: it runs the services of docker-compose.yml as
// plain processes of this machine: up, down, status. scripts/fleet builds what it needs
// and calls it.
package local

import (
	"context"
	"io"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/cli"
)

const help = `fleet runs the fleet of docker-compose.yml as plain processes, on loopback
addresses only: same commands, same settings, other addresses. What it starts
goes on when it ends; fleet down ends it, and nothing else.

There is no supervisor: a process that was killed stays away until the next
fleet up, which starts what is missing and leaves the rest alone.`

const examples = `  scripts/fleet up
  scripts/fleet status
  kill -9 PID                  # one of the PIDs that status shows, and ask again
  scripts/fleet up             # brings it back
  scripts/fleet down           # --volumes also forgets the data`

// Ports that are not published are taken from here on.
const defaultBasePort = 17300

// app is one invocation.
type app struct {
	stdout    io.Writer
	lookupEnv func(string) (string, bool)

	file, bin, dir string
	basePort       int
	freePorts      bool
	timeout        time.Duration
	output         string
}

// Run is the whole program.
func Run(ctx context.Context, args []string, env func(string) (string, bool), stdout, stderr io.Writer) int {
	a := &app{stdout: stdout, lookupEnv: env}
	return cli.Run(ctx, a.command(), args, stdout, stderr)
}

func (a *app) command() *cobra.Command {
	root := &cobra.Command{
		Use: "fleet", Short: "run the compose fleet as plain processes", Long: help, Example: examples, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	fs := root.PersistentFlags()
	fs.SortFlags = false
	fs.StringVar(&a.dir, "dir", a.defaultDir(), "where logs, data and the list of processes are kept")

	var grace time.Duration
	var volumes bool
	up := &cobra.Command{
		Use: "up", Short: "start what does not run, and wait until all of it is healthy", Args: cobra.NoArgs,
		RunE: a.wrap(func(ctx context.Context) error { return a.up(ctx) }),
	}
	fs = up.Flags()
	fs.StringVar(&a.file, "file", "docker-compose.yml", "the compose file")
	fs.StringVar(&a.bin, "bin", "bin", "directory of the programs")
	fs.IntVar(&a.basePort, "base-port", defaultBasePort, "first of the ports for what is not published")
	fs.BoolVar(&a.freePorts, "free-ports", false, "take any free ports, also for what is published")
	fs.DurationVar(&a.timeout, "timeout", 2*time.Minute, "how long to wait for health")
	down := &cobra.Command{
		Use: "down", Short: "end what up has started", Args: cobra.NoArgs,
		RunE: a.wrap(func(ctx context.Context) error { return a.down(ctx, grace, volumes) }),
	}
	down.Flags().DurationVar(&grace, "grace", 0, "how long each process may take (default: stop_grace_period of the file); 0s kills at once")
	down.Flags().Lookup("grace").DefValue = ""
	down.Flags().BoolVarP(&volumes, "volumes", "v", false, "remove the data too")
	down.PreRun = func(cmd *cobra.Command, _ []string) {
		if !cmd.Flags().Changed("grace") {
			grace = asInFile
		}
	}
	status := &cobra.Command{
		Use: "status", Short: "show what runs; exit code 1 if something does not, or is not healthy", Args: cobra.NoArgs,
		RunE: a.wrap(func(ctx context.Context) error { return a.status(ctx) }),
	}
	status.Flags().StringVarP(&a.output, "output", "o", "table", "table or json")
	root.AddCommand(up, down, status)
	return root
}

func (a *app) wrap(do func(context.Context) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		if a.output != "" && a.output != "table" && a.output != "json" {
			return cli.Wrongf("-o %q: use table or json", a.output)
		}
		dir, err := filepath.Abs(a.dir)
		if err != nil {
			return err
		}
		a.dir = dir
		return do(cmd.Context())
	}
}

// defaultDir is below the user's state directory.
func (a *app) defaultDir() string {
	if d, ok := a.lookupEnv("XDG_STATE_HOME"); ok && filepath.IsAbs(d) {
		return filepath.Join(d, "pdmesh", "fleet")
	}
	home, _ := a.lookupEnv("HOME")
	return filepath.Join(home, ".local", "state", "pdmesh", "fleet")
}
